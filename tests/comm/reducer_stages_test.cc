// Specs that send everything in their first steps, or more than later: beside plans that are
// changed by hand, and beside sums in float64.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "gradwire/comm/reducer.h"
#include "gradwire/comm/stages.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

constexpr int kRanks = 4, kSteps = 8;

using Exempt1D = PlanOptions::Exempt1D;

Plan plan_with(const std::string& spec, const std::string& exchange,
               Exempt1D exempt = Exempt1D::kAuto) {
  return make_plan(model(), {.spec = parse_spec(spec),
                             .exchange = exchange,
                             .bucket_bytes = 16384,
                             .exempt_1d = exempt,
                             .seed = 3,
                             .ranks_per_node = exchange == "hierarchical" ? 2 : 1});
}

/// The mean of all ranks' gradients of a step, in float64.
std::vector<std::vector<double>> exact_mean(int step) {
  std::vector<std::vector<double>> mean;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Values values = gradients(rank, step);
    mean.resize(values.size());
    for (size_t p = 0; p < values.size(); ++p) {
      mean[p].resize(values[p].size());
      for (size_t i = 0; i < values[p].size(); ++i) {
        mean[p][i] += double{values[p][i]} / kRanks;
      }
    }
  }
  return mean;
}

double largest_error(const Values& has, const std::vector<std::vector<double>>& should) {
  double worst = 0;
  for (size_t p = 0; p < has.size(); ++p) {
    for (size_t i = 0; i < has[p].size(); ++i) {
      worst = std::max(worst, std::fabs(double{has[p][i]} - should[p][i]));
    }
  }
  return worst;
}

void step(Reducer& reducer, int rank, int number) {
  hand_over(reducer, gradients(rank, number));
  check(reducer.wait() == StepOutcome::kCommitted, "not committed");
}

struct Case {
  const char* spec;
  const char* exchange;
};

const Case kCases[] = {{"topk:5%,int4", "gather"},
                       {"topk:5%", "two_shot"},
                       {"topk:5%", "gtopk"},
                       {"topk:5%,int4", "hierarchical"},
                       {"int8,stochastic", "gather"},
                       {"int4,residual=bf16", "two_shot"},
                       {"powersgd:2", "sum"},
                       {"powersgd:2", "ring"},
                       {"powersgd:2,rounds=2", "dense"},
                       {"powersgd:3", "rabenseifner"},
                       {"dgc:5%", "gather"},
                       {"threshold:5%", "two_shot"},
                       {"randomk:5%", "dense"},
                       {"blocktopk:5%", "gather"},
                       {"fp16", "dense"}};

TEST(ReducerFirstSteps, SendEverythingAndAreThenThePlanAloneOverEveryExchange) {
  constexpr int kStart = 3;
  for (const Case& c : kCases) {
    SCOPED_TRACE(concat(c.spec, " over ", c.exchange));
    const auto ends = run_ranks(kRanks, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer reducer(plan_with(concat(c.spec, ",start=", kStart), c.exchange), transport);
      Reducer by_hand(plan_with("none", "dense"), transport);
      const void* const memory = reducer.gradient(3).data;
      for (int number = 0; number < kSteps; ++number) {
        if (number == kStart) {
          by_hand.set_plan(plan_with(c.spec, c.exchange));
        }
        step(reducer, rank, number);
        step(by_hand, rank, number);
        const double error = largest_error(means(reducer), exact_mean(number));
        check(number >= kStart || error < 1e-6, "step ", number, " is ", error, " from the mean");
        check(number < kStart || same_bits(means(reducer), means(by_hand)), "means of step ",
              number);
        check(same_bits(residuals(reducer), residuals(by_hand)), "residuals of step ", number);
      }
      check(reducer.gradient(3).data == memory, "gradient() moved");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerFirstSteps, MaySendBf16AndOweTheRest) {
  constexpr Exempt1D kNever = Exempt1D::kNever;
  const auto ends = run_ranks(kRanks, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_with("topk:5%,start=2:bf16", "gather", kNever), transport);
    Reducer by_hand(plan_with("bf16,ef", "dense", kNever), transport);
    for (int number = 0; number < 5; ++number) {
      if (number == 2) {
        by_hand.set_plan(plan_with("topk:5%", "gather", kNever));
      }
      step(reducer, rank, number);
      step(by_hand, rank, number);
      const double error = largest_error(means(reducer), exact_mean(number));
      check(number >= 2 || (error > 1e-6 && error < 0.03), "step ", number, " is ", error,
            " from the mean");
      check(same_bits(means(reducer), means(by_hand)), "means of step ", number);
      check(same_bits(residuals(reducer), residuals(by_hand)), "residuals of step ", number);
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerFirstSteps, GoOnWithAVelocity) {
  constexpr double kMomentum = 0.8;
  const auto ends = run_ranks(kRanks, [&](Transport& transport) {
    Reducer reducer(plan_with("int8,momentum=0.8,start=3", "two_shot"), transport);
    std::vector<std::vector<double>> velocity;
    for (int number = 0; number < 5; ++number) {
      step(reducer, transport.rank(), number);
      const auto mean = exact_mean(number);
      velocity.resize(mean.size());
      for (size_t p = 0; p < mean.size(); ++p) {
        velocity[p].resize(mean[p].size());
        for (size_t i = 0; i < mean[p].size(); ++i) {
          velocity[p][i] = kMomentum * velocity[p][i] + mean[p][i];
        }
      }
      // int8 rounds to 1/127 of a block's largest, here of at most about 8, twice.
      const Values now = means(reducer);
      const double error = largest_error({now[0], now[1]}, {velocity[0], velocity[1]});
      check(error < (number < 3 ? 1e-5 : 0.1), "step ", number, " is ", error, " from it");
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerFirstSteps, GiveEF21TheGradientItselfToBeginWith) {
  const auto ends = run_ranks(kRanks, [&](Transport& transport) {
    Reducer reducer(plan_with("topk:30%,ef21,start=2", "gather"), transport);
    step(reducer, transport.rank(), 0);
    step(reducer, transport.rank(), 1);
    check(largest_error(means(reducer), exact_mean(1)) < 1e-5, "no estimate of the last gradient");
    step(reducer, transport.rank(), 1);  // the same again: nothing is left to send
    const Values now = means(reducer);
    const auto should = exact_mean(1);
    check(largest_error({now[0], now[1]}, {should[0], should[1]}) < 1e-5, "forgot it");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerFirstSteps, LetTheDensityOfEverySelectorFall) {
  for (const CompressorRow& row : compressor_registry()) {
    if (!row.selector()) {
      continue;
    }
    SCOPED_TRACE(row.name);
    const std::string name(row.name);
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const int rank = transport.rank();
      const char* const start = row.keeps_velocity() ? ",start=1" : "";
      const int first = row.keeps_velocity() ? 1 : 0;
      Reducer reducer(plan_with(concat(name, ":5%,warmup=2", start), "gather"), transport);
      Reducer by_hand(plan_with(first == 1 ? "none" : name + ":25%", "gather"), transport);
      for (int number = 0; number < first + 6; ++number) {
        if (number == first || number == first + 2 || number == first + 4) {
          const char* const densities[] = {":25%", ":6.25%", ":5%"};
          by_hand.set_plan(plan_with(name + densities[(number - first) / 2], "gather"));
        }
        step(reducer, rank, number);
        step(by_hand, rank, number);
        check(number < first || same_bits(means(reducer), means(by_hand)), "step ", number);
      }
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerFirstSteps, SendWhatTheDensityOfTheStageSays) {
  const auto ends = run_ranks(1, [&](Transport& transport) {
    Reducer reducer(plan_with("topk:1%,warmup=1", "gather"), transport);
    for (const double density : {0.25, 0.0625, 0.015625, 0.01, 0.01}) {
      step(reducer, 0, 0);
      const Values sent = means(reducer);
      const auto& matrix = sent[4];  // a bucket of its own: 33 x 200
      const auto kept = matrix.size() - static_cast<size_t>(std::ranges::count(matrix, 0.0f));
      const auto should = static_cast<size_t>(std::ceil(density * static_cast<double>(33 * 200)));
      check(kept == should, kept, " of 6600 elements at ", density, ", not ", should);
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerFirstSteps, CountCommittedStepsAlone) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_with("topk:5%,start=2", "gather"), transport,
                    {.on_nonfinite = OnNonFinite::kSkip});
    for (int number = 0; number < 5; ++number) {
      Values values = gradients(rank, number);
      values[1][7] = number == 1 && rank == 1 ? std::numeric_limits<float>::infinity() : 0.5f;
      hand_over(reducer, values);
      check(reducer.wait() == (number == 1 ? StepOutcome::kSkipped : StepOutcome::kCommitted),
            "step ", number);
      // Steps 0 and 2 are the first two: behind them matrices have a residual.
      check(reducer.residual(0).empty() == (number < 3), "step ", number, ": another spec");
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerFirstSteps, HandOnPayloadsAcrossTheChange) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_with("topk:5%,start=2", "gather"), transport);
    for (BucketId b = 0; b < reducer.plan().buckets.size(); ++b) {
      reducer.deliver(b, Delivery::kPayloads);
    }
    for (int number = 0; number < 4; ++number) {
      step(reducer, rank, number);
      if (number == 1) {
        std::ostringstream out;
        reducer.save(out);  // which goes to the next specs
      }
      for (BucketId b = 0; b < reducer.plan().buckets.size(); ++b) {
        for (const GroupPayloads& each : reducer.take_payloads(b)) {
          const bool narrow = each.compressor->spec().name == "topk";
          check(number >= 2 || !narrow, "step ", number, " sent ", to_string(each.group->spec));
        }
      }
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerFirstSteps, RefuseToHandOnWhatLaterStepsCannot) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan_with("powersgd:2,start=2", "dense"), transport);
    const std::string message =
        message_of<InvalidArgument>([&] { reducer.deliver(0, Delivery::kPayloads); });
    check(contains(message, "has a compressor that learns from the mean"), message);
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerFirstSteps, ArePartOfThePlanAndOfItsDescription) {
  const Plan plan = plan_with("topk:5%,start=2", "gather");
  EXPECT_TRUE(contains(plan.describe(), "topk:5%,start=2, 6600 elements, capacity "))
      << plan.describe();
  EXPECT_TRUE(contains(plan.describe(), ", in the first step none of 26432 bytes"));
  EXPECT_TRUE(contains(plan.describe(), ": bf16,start=2, "));  // 1-D parameters
  EXPECT_NE(plan.fingerprint(), plan_with("topk:5%,start=3", "gather").fingerprint());
  EXPECT_EQ(plan_in_step(plan, 2).fingerprint(), plan_with("topk:5%", "gather").fingerprint());
  EXPECT_EQ(plan_in_step(plan, 0).buckets[0].exchange, "dense");
}

}  // namespace
}  // namespace gradwire::test
