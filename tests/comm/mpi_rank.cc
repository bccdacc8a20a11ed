// One rank of the tests in transport_mpi_test.cc: started by mpirun, does what its arguments say,
// and prints one line that begins with its rank.

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <thread>

#include "gradwire/comm/verify.h"
#include "tests/comm/reducer_digest.h"

namespace gradwire::test {
namespace {

using std::chrono::milliseconds;

/// A rank at work.
struct Self {
  TransportOptions options = comm::from_environment();
  std::unique_ptr<Stream> stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};

  int rank() const { return options.rank; }
  std::unique_ptr<Transport> join(milliseconds timeout = milliseconds(30000)) {
    options.timeout = timeout;
    return make_transport("mpi", options);
  }
  void barrier(Transport& transport, std::string_view what) {
    transport.barrier({1, what}, context);
    stream->wait();
  }
};

std::string verify(Self& self) {
  verify_transport(*self.join(), {}, self.context);
  return "verified";
}

/// Groups at the same time and one after the other.
std::string rejoin(Self& self) {
  for (int round = 0; round < 3; ++round) {
    const auto first = self.join(), second = self.join();
    verify_transport(*second, {.largest_bytes = 9000}, self.context);
    verify_transport(*first, {.largest_bytes = 9000}, self.context);
  }
  return "verified";
}

std::string reduce(Self& self, const std::string& spec) {
  return digest_of_steps(spec, *self.join());
}

std::string mismatch(Self& self) {
  const auto transport = self.join();
  std::vector<float> values(self.rank() == 0 ? 900 : 903);
  transport->all_reduce_sum(values, {7, "a gradient"}, self.context);
  self.stream->wait();
  self.barrier(*transport, "the next call");
  return "no error";
}

/// Rank 2 gives up while the others wait for it, with an hour to go.
std::string abort(Self& self) {
  const auto transport = self.join(std::chrono::hours(1));
  self.barrier(*transport, "the start");
  if (self.rank() == 2) {
    std::this_thread::sleep_for(milliseconds(100));
    transport->abort("the user pressed stop");
  }
  std::vector<float> values(1 << 20);
  transport->all_reduce_sum(values, {7, "a gradient"}, self.context);
  self.stream->wait();
  return "no error";
}

std::string leave(Self& self) {
  auto transport = self.join(std::chrono::hours(1));
  self.barrier(*transport, "the start");
  if (self.rank() == 1) {
    transport.reset();
    return "left";
  }
  self.barrier(*transport, "the second call");
  return "no error";
}

std::string silent(Self& self) {
  const auto transport = self.join(milliseconds(2000));
  self.barrier(*transport, "the start");
  if (self.rank() == 1) {
    std::this_thread::sleep_for(milliseconds(3500));
  }
  self.barrier(*transport, "the second call");
  return "no error";
}

/// Rank 1 joins once, the others want to twice.
std::string missing(Self& self) {
  const auto first = self.join();
  if (self.rank() != 1) {
    self.join(milliseconds(500));
  }
  return "no error";
}

/// Rank 1 comes too late for MPI itself to start.
std::string late(Self& self) {
  if (self.rank() == 1) {
    std::this_thread::sleep_for(milliseconds(1500));
  }
  const auto transport = self.join(milliseconds(self.rank() == 1 ? 300 : 700));
  return "no error";
}

std::string stranger(Self& self) {
  self.options.world_size += 1;
  self.join();
  return "no error";
}

/// An application that uses MPI itself, before, during and after.
std::string application(Self& self) {
  int provided = 0, ranks = 1, finalised = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  std::string said = "no error";
  {
    const auto transport = self.join();
    const auto stream = make_cpu_stream();
    Context there{*stream, self.workspace};
    std::vector<float> values(100000, 1.0f);
    transport->all_reduce_sum(values, {7, "a gradient"}, there);
    int sum = 0;
    MPI_Allreduce(&ranks, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    stream->wait();
    check(sum == self.options.world_size && values[99999] == static_cast<float>(sum),
          "the sums are ", sum, " and ", values[99999]);
    self.barrier(*transport, "the last call");
    MPI_Barrier(MPI_COMM_WORLD);  // whoever finalises first would end the call for the rest
    MPI_Finalize();
    try {
      self.barrier(*transport, "a call too late");
    } catch (const TransportError& error) {
      said = error.what();
    }
  }
  MPI_Finalized(&finalised);
  return finalised != 0 ? said : "MPI was not finalised";
}

std::string single(Self& self) {
  MPI_Init(nullptr, nullptr);
  std::string said = "no error";
  try {
    self.join();
  } catch (const InvalidArgument& error) {
    said = error.what();
  }
  MPI_Finalize();
  return said;
}

}  // namespace

int run(const std::string& what, const std::string& argument) {
  const std::map<std::string, std::function<std::string(Self&)>> bodies = {
      {"verify", verify},
      {"rejoin", rejoin},
      {"reduce", [&](Self& self) { return reduce(self, argument); }},
      {"mismatch", mismatch},
      {"abort", abort},
      {"leave", leave},
      {"silent", silent},
      {"missing", missing},
      {"late", late},
      {"stranger", stranger},
      {"application", application},
      {"single", single}};
  Self self;
  std::string line;
  try {
    line = bodies.at(what)(self);
  } catch (const std::exception& error) {
    line = error.what();
  }
  line = concat("rank ", self.rank(), ": ", line, "\n");
  return write(STDOUT_FILENO, line.data(), line.size()) > 0 ? 0 : 1;
}

}  // namespace gradwire::test

int main(int count, char** arguments) {
  return gradwire::test::run(count > 1 ? arguments[1] : "", count > 2 ? arguments[2] : "");
}
