// Gradients that travel as they are: the bits, the bytes, and whose fault it was when they were not
// finite.

#include <gtest/gtest.h>

#include <limits>

#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

Plan plain_plan(size_t numel, const std::string& exchange) {
  PlanOptions options;
  options.spec = parse_spec("none");
  options.exchange = exchange;
  options.bucket_bytes = 4 * numel;
  return make_plan({{{"a", {numel / 3}}, {"b", {numel - numel / 3}}}}, options);
}

// The step of every rank on `gradient(rank)`; the mean, or what was thrown.
std::vector<std::pair<std::vector<float>, std::string>> step(
    int ranks, size_t numel, const std::string& exchange,
    const std::function<std::vector<float>(int)>& gradient, std::vector<uint64_t>* sent = nullptr) {
  std::vector<std::pair<std::vector<float>, std::string>> found(static_cast<size_t>(ranks));
  if (sent != nullptr) {
    sent->resize(found.size());
  }
  const auto ends = run_ranks(ranks, [&](Transport& transport) {
    const auto r = static_cast<size_t>(transport.rank());
    Reducer reducer(plain_plan(numel, exchange), transport);
    check(reducer.plan().buckets.size() == 1, "expected one bucket");
    std::vector<float> mine = gradient(transport.rank());
    reducer.bucket_ready(0, {mine.data(), mine.size(), DType::kFloat32, {}});
    found[r].second = message_of<NonFiniteGradient>([&] { reducer.wait(); });
    found[r].first = mine;
    const StepTrace& last = reducer.trace().steps().back();
    uint64_t bytes = 0, predicted = 0;
    for (const BucketTrace& bucket : last.buckets) {
      bytes += bucket.bytes_sent;
      predicted += bucket.predicted_bytes_sent;
    }
    check(bytes == predicted, bytes, " bytes were sent, ", predicted, " were predicted");
    if (sent != nullptr) {
      (*sent)[r] = bytes;
    }
  });
  EXPECT_EQ(first_message(ends), "");
  return found;
}

TEST(GradientSum, IsTheSerialMeanInFloat32AtEverySize) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    for (const size_t numel : {3, 5, 4096, 12289, 100003}) {
      SCOPED_TRACE(concat(ranks, " ranks, ", numel, " elements"));
      const auto gradient = [numel](int rank) {
        std::mt19937 generator(static_cast<unsigned>(31 * rank) + static_cast<unsigned>(numel));
        std::normal_distribution<float> normal;
        std::vector<float> values(numel);
        std::ranges::generate(values, [&] { return normal(generator); });
        return values;
      };
      std::vector<float> mean = gradient(0);
      for (int r = 1; r < ranks; ++r) {
        const std::vector<float> other = gradient(r);
        std::ranges::transform(mean, other, mean.begin(), std::plus<>());
      }
      for (float& x : mean) {
        x *= 1.0f / static_cast<float>(ranks);
      }
      std::vector<uint64_t> sent;
      const auto found = step(ranks, numel, "dense", gradient, &sent);
      for (size_t r = 0; r < found.size(); ++r) {
        EXPECT_EQ(found[r].second, "");
        EXPECT_EQ(std::memcmp(found[r].first.data(), mean.data(), 4 * numel), 0) << "rank " << r;
        // All but the own shard away, then the own sum to all others; 64 bytes before each message.
        const size_t own = numel / found.size() + (r < numel % found.size() ? 1 : 0);
        const size_t others = found.size() - 1;
        EXPECT_EQ(sent[r], others == 0 ? 0 : 4 * (numel - own) + 4 * own * others + 128 * others);
      }
    }
  }
}

// Whoever it was, on every rank; and sums that overflow are nobody's fault.
TEST(GradientSum, NamesTheRankWhoseGradientWasNotFinite) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  struct Case {
    std::vector<float> of_rank;  // at element 9000 of 12000
    int blamed;
  };
  const Case cases[] = {{{1, kNan, 1}, 1},         {{kInf, 1, -kInf}, 0},
                        {{1, 1, -kInf}, 2},        {{3e38f, 3e38f, 1}, -1},
                        {{3e38f, 3e38f, kNan}, 2}, {{3e38f, kNan, 3e38f}, 1}};
  for (const Case& c : cases) {
    const auto found = step(3, 12000, "dense", [&](int rank) {
      std::vector<float> values(12000, 1.0f);
      values[9000] = c.of_rank[static_cast<size_t>(rank)];
      return values;
    });
    for (const auto& [mean, message] : found) {
      EXPECT_TRUE(contains(message, c.blamed < 0
                                        ? "the sum of the ranks' finite gradients overflows"
                                        : concat("rank ", c.blamed, "'s gradient")))
          << message;
    }
  }
}

// What the sum in float32 loses is not flagged, and neither are the largest values that fit.
TEST(GradientSum, TakesTheLargestValues) {
  const auto found = step(2, 64, "dense", [&](int rank) {
    return std::vector<float>(64, rank == 0 ? std::numeric_limits<float>::max() : 1.0f);
  });
  for (const auto& [mean, message] : found) {
    EXPECT_EQ(message, "");
    EXPECT_EQ(mean[63], std::numeric_limits<float>::max() / 2);
  }
}

}  // namespace
}  // namespace gradwire::test
