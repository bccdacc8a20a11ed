// Ranks as processes that go on without the one that was killed or stopped.

#include <sys/syscall.h>

#include <bit>
#include <iostream>
#include <sstream>

#include "gradwire/comm/verify.h"
#include "tests/comm/transport_processes.h"

namespace {

/// Where this process is to end: when it connects to the store of a group that has been agreed on.
struct Ending {
  std::atomic<bool> armed{false};
  bool collects = false;            // it makes that store itself
  std::atomic<int> listens_at{0};   // its newest port
  std::atomic<int> asked_at[2]{};   // the control sockets of the two others
} ending;

int port_of(const sockaddr* address) {
  return address->sa_family == AF_INET
             ? ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port)
             : 0;
}

}  // namespace

// In the place of libc's, for all that is linked into this program.
extern "C" int listen(int fd, int backlog) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    ending.listens_at = ntohs(address.sin_port);
  }
  return static_cast<int>(syscall(SYS_listen, fd, backlog));
}

extern "C" int connect(int fd, const sockaddr* address, socklen_t length) {
  const int port = port_of(address);
  if (ending.armed && port != 0) {
    bool asks = false;
    for (std::atomic<int>& other : ending.asked_at) {
      int none = 0;
      asks = asks || other.compare_exchange_strong(none, port) || none == port;
    }
    if (ending.collects ? port == ending.listens_at : !asks) {
      kill(getpid(), SIGKILL);
    }
  }
  return static_cast<int>(syscall(SYS_connect, fd, address, length));
}

namespace gradwire::transport_test {
namespace {

using Say = std::function<void(const std::string&)>;

class RebuildProcesses : public GlooProcesses {
 protected:
  /// The sum of values that depend on the rank alone, as bits; the same on all ranks or the test
  /// fails.
  static std::string bits_of_sum(Transport& transport, Context& context) {
    std::vector<float> values(100000);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 1.0f / static_cast<float>(i + 3 * static_cast<size_t>(transport.rank()) + 1);
    }
    transport.all_reduce_sum(values, {8, "the sum"}, context);
    context.stream.wait();
    uint64_t hash = 1469598103934665603u;
    for (const float value : values) {
      hash = (hash ^ std::bit_cast<uint32_t>(value)) * 1099511628211u;
    }
    return std::to_string(hash);
  }

  /// Reduces until the group breaks, then goes on with those that are left, `rebuilds` times.
  void work(int rank, int size, int rebuilds, const Say& say) const {
    auto transport = make_transport("gloo", options_of(rank, size, milliseconds(4000)));
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    for (int round = 0;; ++round) {
      try {
        reduce_forever(*transport, say);
      } catch (const TransportError& error) {
        say(concat("lost rank ", error.peer(), ": ", error.what()));
      }
      const auto start = std::chrono::steady_clock::now();
      transport = transport->rebuild({.timeout = milliseconds(5000), .silence = milliseconds(300)});
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      std::string members;
      for (const int member : transport->old_ranks()) {
        members += concat(" ", member);
      }
      say(concat("rebuilt", members));
      say(concat(took.count()));
      say(bits_of_sum(*transport, context));
      verify_transport(*transport, {.largest_bytes = 100'003}, context);
      say("verified");
      if (round + 1 == rebuilds) {
        transport->barrier({}, context);
        stream->wait();
        return;
      }
    }
  }

  /// What all survivors say about one rebuild.
  static void expect_rebuilt(Processes& processes, const std::vector<int>& survivors,
                             const std::string& members, const std::string& what) {
    std::string sum;
    for (const int rank : survivors) {
      EXPECT_EQ(processes.line_of(rank), "rebuilt" + members);
      const std::string took = processes.line_of(rank);
      if (rank == survivors[0]) {
        std::cout << what << ": rebuilt in " << took << " ms\n";
      }
      const std::string bits = processes.line_of(rank);
      sum = sum.empty() ? bits : sum;
      EXPECT_EQ(bits, sum) << "rank " << rank << " has other bits";
      EXPECT_EQ(processes.line_of(rank), "verified");
    }
  }
};

TEST_F(RebuildProcesses, SurvivorsOfAKilledRankGoOnTwice) {
  const int size = 4;
  // Rank 0 hosts the first store and collects the second group's ranks.
  for (const int first : {0, 2}) {
    const TemporaryFolder folder;
    const int second = first == 0 ? 1 : 0;
    Processes processes(size, [&](int rank, const Say& say) { work(rank, size, 2, say); });
    std::vector<int> survivors{0, 1, 2, 3};
    for (const int r : survivors) {
      ASSERT_EQ(processes.line_of(r), "running");
    }
    std::erase(survivors, first);
    processes.send(first, SIGKILL);
    for (const int r : survivors) {
      const std::string line = processes.line_of(r);
      EXPECT_EQ(line.find(concat("lost rank ", first, ": ")), 0u) << "rank " << r << ": " << line;
    }
    expect_rebuilt(processes, survivors, first == 0 ? " 1 2 3" : " 0 1 3",
                   concat("rank ", first, " killed"));
    for (const int r : survivors) {
      ASSERT_EQ(processes.line_of(r), "running");
    }
    std::erase(survivors, second);
    processes.send(second, SIGKILL);
    for (const int r : survivors) {
      const std::string line = processes.line_of(r);
      EXPECT_EQ(line.find("lost rank 0: "), 0u) << "it was the new rank 0: " << line;
    }
    expect_rebuilt(processes, survivors, " 1 2", concat("then rank ", second));
    for (const int r : survivors) {
      EXPECT_EQ(processes.line_of(r), "fine");
    }
  }
}

// Rank 0 collects the others and makes the store in which they meet.
TEST_F(RebuildProcesses, ARankThatDiesBetweenAgreeingAndConnectingIsNamedAndLeftOut) {
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    Processes processes(3, [&](int rank, const Say& say) {
      auto transport = make_transport("gloo", options_of(rank, 3, milliseconds(500)));
      const auto stream = make_inline_stream();
      Workspace workspace;
      Context context{*stream, workspace};
      try {
        transport->barrier({}, context);  // all have joined when one leaves it
        stream->wait();
      } catch (const TransportError&) {
        // That one rebuilds already.
      }
      ending.collects = rank == 0;
      ending.armed = rank == victim;
      const RebuildOptions options{.timeout = milliseconds(5000), .silence = milliseconds(300)};
      std::unique_ptr<Transport> next;
      for (int attempt = 0; !next && attempt < 3; ++attempt) {
        try {
          next = transport->rebuild(options);
        } catch (const TransportError& error) {
          say(concat("lost rank ", error.peer(), ": ", error.what()));
        }
      }
      check(next != nullptr, "three attempts failed");
      std::string members;
      for (const int member : next->old_ranks()) {
        members += concat(" ", member);
      }
      say("rebuilt" + members);
      say(bits_of_sum(*next, context));
      next->barrier({}, context);
      stream->wait();
    });
    EXPECT_EQ(processes.line_of(victim), "") << "it died";
    std::string sum;
    for (const int rank : {1 - victim, 2}) {
      // Where it died before it told anybody, the others have agreed anew without an error.
      std::string line = processes.line_of(rank);
      for (; line.starts_with("lost "); line = processes.line_of(rank)) {
        EXPECT_NE(line.find(concat("rank ", victim), 5), std::string::npos) << line;
      }
      EXPECT_EQ(line, concat("rebuilt ", 1 - victim, " 2"));
      const std::string bits = processes.line_of(rank);
      sum = sum.empty() ? bits : sum;
      EXPECT_EQ(bits, sum) << "rank " << rank << " has other bits";
      EXPECT_EQ(processes.line_of(rank), "fine");
    }
  }
}

TEST_F(RebuildProcesses, AStoppedRankThatWakesAfterTheRebuildIsToldAndHarmsNobody) {
  const int size = 3;
  for (const int stopped : {0, 1}) {
    Processes processes(size, [&](int rank, const Say& say) { work(rank, size, 2, say); });
    std::vector<int> survivors{0, 1, 2};
    for (const int r : survivors) {
      ASSERT_EQ(processes.line_of(r), "running");
    }
    std::erase(survivors, stopped);
    processes.send(stopped, SIGSTOP);
    for (const int r : survivors) {
      const std::string line = processes.line_of(r);
      EXPECT_EQ(line.find(concat("lost rank ", stopped, ": ")), 0u) << "rank " << r << ": " << line;
    }
    expect_rebuilt(processes, survivors, stopped == 0 ? " 1 2" : " 0 2",
                   concat("rank ", stopped, " stopped"));
    processes.send(stopped, SIGCONT);
    const std::string lost = processes.line_of(stopped);
    EXPECT_EQ(lost.find("lost rank "), 0u) << lost;
    const std::string told = processes.line_of(stopped);
    EXPECT_EQ(told, concat("rebuild: ranks ", stopped == 0 ? "1, 2" : "0, 2",
                           " went on without rank ", stopped));
    for (const int r : survivors) {
      ASSERT_EQ(processes.line_of(r), "running") << "after the other woke";
    }
    processes.send(survivors[0], SIGKILL);
    EXPECT_EQ(processes.line_of(2).find("lost rank 0: "), 0u);
    expect_rebuilt(processes, {2}, " 1", "of two, one killed");
    EXPECT_EQ(processes.line_of(2), "fine");
  }
}

}  // namespace
}  // namespace gradwire::transport_test
