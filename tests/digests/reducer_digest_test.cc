// Every exchange's means and every checkpoint of a Reducer are those that were recorded.

#include "gradwire/kernels/core/isa.h"
#include "tests/digests/reducer_digests.h"
#include "tests/support/isa_paths.h"

namespace gradwire::digests {
namespace {

/// The digest of what all ranks' reducers compute.
std::string digest(const ReducerCase& c) {
  std::vector<Steps> of_ranks(static_cast<size_t>(c.ranks));
  const auto ends = test::run_ranks(c.ranks, [&](Transport& transport) {
    Reducer reducer(c.plan(), transport);
    Steps& mine = of_ranks[static_cast<size_t>(transport.rank())];
    for (int step = 0; step < c.steps; ++step) {
      for (size_t left = reducer.plan().parameters.size(); left > 0; --left) {
        const auto p = static_cast<ParamId>(left - 1);
        const std::vector<std::byte> bytes = c.gradient_of(p, transport.rank(), step);
        std::ranges::copy(bytes, static_cast<std::byte*>(reducer.gradient(p).data));
        reducer.grad_ready(p);
      }
      reducer.wait();
      mine.keep(c, step, reducer, [&](ParamId p) {
        const Gradient mean = reducer.gradient(p);
        const auto* const begin = static_cast<const std::byte*>(mean.data);
        return std::vector<std::byte>(begin, begin + mean.size_bytes());
      });
    }
  });
  EXPECT_EQ(test::first_message(ends), "") << c.name();
  return digest_of(c, of_ranks);
}

void compare_on(cpu::Isa path) {
  if (path > cpu::best_isa()) {
    GTEST_SKIP() << "this machine has no " << testing::name_of(path);
  }
  const cpu::IsaLimit limit(path);
  Recorded recorded("reducer.txt");
  const std::vector<std::string> names = rows();
  recorded.expect_rows(names);
  for (const std::string& name : drawn(names, 40)) {
    Columns columns;
    for (const ReducerCase& c : cases_of(name)) {
      columns.push_back(c.carried() ? digest(c) : "refused");
    }
    recorded.expect(name, columns, testing::name_of(path));
  }
  recorded.write(kReducerHead);
}

TEST(ReducerDigests, OfPlainCodeAreThoseRecorded) { compare_on(cpu::Isa::kPlain); }
TEST(ReducerDigests, OfAvx2AreThoseRecorded) { compare_on(cpu::Isa::kAvx2); }
TEST(ReducerDigests, OfAvx512AreThoseRecorded) { compare_on(cpu::Isa::kAvx512); }

}  // namespace
}  // namespace gradwire::digests
