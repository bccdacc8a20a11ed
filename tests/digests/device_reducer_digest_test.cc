// A Reducer on emulated GPUs has the means and the checkpoints that were recorded of the CPU's.

#include "tests/digests/reducer_digests.h"
#include "tests/simt/reducer/device_ranks.h"

namespace gradwire::digests {
namespace {

using test::DeviceReducers;
using test::NcclRank;

/// What a GPU carries of rows().
std::vector<std::string> device_rows() {
  std::vector<std::string> names;
  for (const std::string& name : rows()) {
    const ReducerCase c = cases_of(name).front();
    const ExchangeRow& row = find_exchange(c.exchange);
    if (row.on_gpu != nullptr && row.on_gpu(parse_spec(c.spec))) {
      names.push_back(name);
    }
  }
  return names;
}

std::string digest(const ReducerCase& c) {
  std::vector<Steps> of_ranks(static_cast<size_t>(c.ranks));
  test::on_every_gpu(c.ranks, [&](NcclRank self) {
    ReducerOptions options;
    options.stream = &self.stream();
    Reducer reducer(c.plan(), *self.transport, options);
    Steps& mine = of_ranks[static_cast<size_t>(self.rank)];
    for (int step = 0; step < c.steps; ++step) {
      for (size_t left = reducer.plan().parameters.size(); left > 0; --left) {
        const auto p = static_cast<ParamId>(left - 1);
        const std::vector<std::byte> bytes = c.gradient_of(p, self.rank, step);
        const Gradient place = reducer.gradient(p);
        copy_bytes({static_cast<std::byte*>(place.data), place.size_bytes()}, place.device, bytes,
                   {}, self.stream());
        reducer.grad_ready(p);
      }
      reducer.wait();
      mine.keep(c, step, reducer, [&](ParamId p) {
        const Gradient mean = reducer.gradient(p);
        std::vector<std::byte> copy(mean.size_bytes());
        copy_bytes(copy, {}, {static_cast<const std::byte*>(mean.data), copy.size()}, mean.device,
                   self.stream());
        self.stream().wait();
        return copy;
      });
    }
    reducer.synchronize();
  });
  return digest_of(c, of_ranks);
}

TEST_F(DeviceReducers, HaveTheDigestsThatWereRecorded) {
  Recorded recorded("reducer.txt");
  const bool soaks = !variable("GRADWIRE_SOAK").empty();
  const std::vector<std::string> names = device_rows();
  ASSERT_GT(names.size(), 400u);
  std::cout << rows().size() - names.size() << " rows are not there on a GPU\n";
  for (const std::string& name : drawn(names, 6)) {
    Columns columns;
    for (const ReducerCase& c : cases_of(name)) {
      const bool skipped = c.steps == kLongSteps && !soaks;
      columns.push_back(skipped ? "-" : c.carried() ? digest(c) : "refused");
    }
    recorded.expect(name, columns, "the GPU");
  }
}

}  // namespace
}  // namespace gradwire::digests
