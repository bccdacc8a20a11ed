// 1-bit Adam and 1-bit LAMB over ranks, a Reducer and the 1-bit compressor.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/comm/reducer_case.h"
#include "tests/optimizers/model.h"

namespace gradwire {
namespace {

constexpr int kRanks = 4;
constexpr unsigned kFreeze = 20;
constexpr double kRate = 0.03;

Plan plan_of(const char* spec, const char* exchange) {
  return test::plan_of(spec, 16384, exchange);
}

/// A rank that pulls its parameters to numbers of its own: the mean of the ranks' is the aim.
struct Rank {
  Rank(Transport& transport, std::string_view spec)
      : number(transport.rank()),
        reducer(plan_of("none", "auto"), transport, {.on_nonfinite = OnNonFinite::kSkip}) {
    for (int r = 0; r < kRanks; ++r) {
      goals.push_back(test::gradients(r, 1000));
    }
    values = test::gradients(kRanks, 1000);
    optimizer = make_optimizer(parse_optimizer(spec), parameters());
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> all;
    for (size_t p = 0; p < values.size(); ++p) {
      all.push_back({.name = test::model()[p].name,
                     .value = view_of(std::span(values[p])),
                     .gradient = reducer.gradient(p)});
    }
    return all;
  }

  void take_plan(Plan plan) {
    reducer.set_plan(std::move(plan));
    std::vector<Binding> places;
    for (const Parameter& p : parameters()) {
      places.push_back({p.value, p.gradient});
    }
    optimizer->bind(places);
  }

  void backward(unsigned t) {
    const test::Values noise = test::gradients(number, static_cast<int>(t));
    for (size_t p = 0; p < values.size(); ++p) {
      const std::span<float> gradient = reducer.gradient(p).as<float>();
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = values[p][i] - goals[static_cast<size_t>(number)][p][i] + 2.0f * noise[p][i];
      }
    }
  }

  StepOutcome exchange() {
    prepare(*optimizer);
    for (ParamId p : test::backward_order()) {
      reducer.grad_ready(p);
    }
    return reducer.wait();
  }

  /// The root mean square distance from what all ranks together are pulled to.
  double distance() const {
    double squares = 0.0, count = 0.0;
    for (size_t p = 0; p < values.size(); ++p) {
      for (size_t i = 0; i < values[p].size(); ++i) {
        double goal = 0.0;
        for (const test::Values& one : goals) {
          goal += static_cast<double>(one[p][i]) / kRanks;
        }
        squares += std::pow(static_cast<double>(values[p][i]) - goal, 2);
        count += 1.0;
      }
    }
    return std::sqrt(squares / count);
  }

  int number;
  Reducer reducer;
  std::vector<test::Values> goals;
  test::Values values;
  std::unique_ptr<Optimizer> optimizer;
};

std::string with_freeze(const char* name, unsigned step) {
  return concat(name, ":weight_decay=0,freeze_step=", step);
}

class OneBitRanks : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Rows, OneBitRanks, testing::Values("onebit-adam", "onebit-lamb"),
                         [](const auto& row) { return std::string(row.param + 7); });

TEST_P(OneBitRanks, AreTheSameBitForBitAndGoWhereUncompressedOnesGo) {
  double distances[2] = {};
  for (const bool compressed : {false, true}) {
    std::vector<std::vector<test::Values>> history(kRanks);
    double before = 0.0;
    const auto ends = test::run_ranks(kRanks, [&](Transport& transport) {
      Rank rank(transport, with_freeze(GetParam(), kFreeze));
      const double first = rank.distance();
      Exchanged last = Exchanged::kGradients;
      uint64_t sent[2] = {};
      for (unsigned t = 0; t < 150; ++t) {
        const Exchanged next = rank.optimizer->exchanges();
        EXPECT_EQ(next == Exchanged::kMomentum, t >= kFreeze);
        if (std::exchange(last, next) != next && compressed) {
          rank.take_plan(plan_of("1bit", "two_shot"));
        }
        rank.backward(t);
        EXPECT_EQ(rank.exchange(), StepOutcome::kCommitted);
        apply(*rank.optimizer, kRate / (1.0 + 0.02 * t));
        history[static_cast<size_t>(rank.number)].push_back(rank.values);
        if (t + 1 == kFreeze || t == 149) {
          sent[t == 149 ? 1 : 0] = rank.reducer.trace().last().bytes_sent();
        }
      }
      if (rank.number == 0) {
        before = first;
        distances[compressed ? 1 : 0] = rank.distance();
        EXPECT_TRUE(compressed ? sent[1] * 10 < sent[0] : sent[1] == sent[0])
            << sent[0] << " " << sent[1];
      }
    });
    ASSERT_EQ(test::first_message(ends), "");
    for (int r = 1; r < kRanks; ++r) {
      for (size_t t = 0; t < history[0].size(); ++t) {
        ASSERT_TRUE(same_bits(history[static_cast<size_t>(r)][t], history[0][t]))
            << "rank " << r << ", step " << t;
      }
    }
    EXPECT_LT(distances[compressed ? 1 : 0], before / 2);
  }
  EXPECT_LT(distances[1], 2.0 * distances[0]) << "without compression " << distances[0];
}

TEST_P(OneBitRanks, ANonFiniteGradientOnOneRankLeavesTheStepOutOnAll) {
  const auto ends = test::run_ranks(kRanks, [&](Transport& transport) {
    Rank rank(transport, with_freeze(GetParam(), 2));
    for (unsigned t = 0; t < 6; ++t) {
      if (t == 2) {
        rank.take_plan(plan_of("1bit", "two_shot"));
      }
      rank.backward(t);
      const bool bad = t % 2 == 1 && t > 2;
      if (bad && rank.number == 2) {
        rank.reducer.gradient(4).as<float>()[77] = std::numeric_limits<float>::infinity();
      }
      const test::Values before = rank.values;
      const State state = read_state(*rank.optimizer);
      EXPECT_EQ(rank.exchange(), bad ? StepOutcome::kSkipped : StepOutcome::kCommitted) << t;
      EXPECT_TRUE(same_bits(rank.values, before));
      EXPECT_TRUE(same_bits(read_state(*rank.optimizer), state));
      if (!bad) {
        apply(*rank.optimizer, kRate);
        EXPECT_FALSE(same_bits(rank.values, before));
      }
    }
  });
  EXPECT_EQ(test::first_message(ends), "");
}

}  // namespace
}  // namespace gradwire
