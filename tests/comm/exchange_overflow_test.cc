// What two_shot cannot keep without overflow is flagged, so that no rank commits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/comm/two_shot_rank.h"

namespace gradwire::test {
namespace {

TEST(TwoShot, FlagsWhatItCannotKeepWithoutOverflow) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    Rank rank(parse_spec("topk:25%"), transport, 4);
    // Each sends its first choice, and the owner's residual cannot take the smaller sum back.
    rank.gradient = transport.rank() == 0 ? std::vector<float>{2e38f, 1.9e38f, 1, 1}
                                          : std::vector<float>{1.9e38f, 2e38f, 1, 1};
    std::vector<float> mean(4);
    rank.step(mean);
    check(rank.report.overflows, "a residual of ", rank.residual[rank.parity][1],
          " would be committed");
  });
  EXPECT_EQ(first_message(ends), "");
}

// One chunk, which rank 0 owns. It keeps about 3e38 of an element when it compresses, and as owner
// more than 1e38 of that element's sum; no sum overflows.
TEST(TwoShot, FlagsWhatAnOwnerCannotKeepOfSumsThatAreEncodedAgain) {
  struct Overflow {
    const char* spec;
    int ranks;
    float (*value)(int rank, size_t i);
  };
  const Overflow cases[] = {
      // A block's mean magnitude is small beside element 0, at rank 0 and of the sums.
      {"1bit", 3,
       [](int rank, size_t i) {
         if (i % 256 == 0) {
           return rank == 0 ? 3.3e38f : 1e38f;
         }
         return rank == 0 ? 0.0f : rank == 1 ? 1e38f : -1e38f;
       }},
      // 64 are sent: of rank 0 the first, of rank 1 the next, of the sums the first.
      {"chunktopk:64/4096", 2,
       [](int rank, size_t i) {
         if (rank == 0) {
           return i < 64 ? 3.4e38f : i < 128 ? 3e38f : 0.0f;
         }
         return i >= 64 && i < 128 ? 1e38f : 0.0f;
       }}};
  for (const Overflow& c : cases) {
    for (const float scale : {1.0f, 0.5f}) {
      SCOPED_TRACE(concat(c.spec, " ", scale));
      const auto ends = run_ranks(c.ranks, [&](Transport& transport) {
        Rank rank(parse_spec(c.spec), transport, 4096);
        for (size_t i = 0; i < rank.gradient.size(); ++i) {
          rank.gradient[i] = scale * c.value(transport.rank(), i);
        }
        std::vector<float> mean(rank.gradient.size());
        rank.step(mean);
        const auto& kept = rank.residual[rank.parity];
        const bool finite = std::ranges::all_of(kept, [](float e) { return std::isfinite(e); });
        check(finite == (scale < 1 || transport.rank() > 0), "the residual is ",
              finite ? "finite" : "infinite");
        check(rank.report.overflows == (scale == 1), "an overflow was ",
              rank.report.overflows ? "told" : "not told");
        check(rank.report.nonfinite_rank == -1, "rank ", rank.report.nonfinite_rank, " is blamed");
      });
      EXPECT_EQ(first_message(ends), "");
    }
  }
}

}  // namespace
}  // namespace gradwire::test
