// EF21 in the Reducer: the estimate that all ranks share is the mean of what each has sent, whatever
// happens between steps.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "gradwire/comm/reducer.h"
#include "gradwire/comm/transport/in_process.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

Plan plan_with(const std::string& spec, const std::string& exchange, size_t bucket_bytes = 16384) {
  PlanOptions options;
  options.spec = parse_spec(spec);
  options.exchange = exchange;
  options.bucket_bytes = bucket_bytes;
  options.exempt_1d = PlanOptions::Exempt1D::kNever;
  return make_plan(model(), options);
}

void steps(Reducer& reducer, int rank, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    hand_over(reducer, gradients(rank, step));
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
  }
}

/// Of all ranks: the estimates are the same bits and the mean of -residual, to float32 in each step.
void expect_mean_of_what_was_sent(const std::vector<Outcome>& outcomes, int steps) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(same_bits(outcome.means, outcomes[0].means));
  }
  for (size_t p = 0; p < model().size(); ++p) {
    for (size_t i = 0; i < outcomes[0].means[p].size(); ++i) {
      double sum = 0, size = 1;
      for (const Outcome& outcome : outcomes) {
        sum -= double{outcome.residuals[p][i]};
        size += std::abs(double{outcome.residuals[p][i]});
      }
      ASSERT_NEAR(outcomes[0].means[p][i], sum / static_cast<double>(outcomes.size()),
                  4 * steps * 0x1p-24 * size)
          << p << " " << i;
    }
  }
}

struct Case {
  const char* spec;
  const char* exchange;
};
constexpr Case kCases[] = {{"topk:5%,ef21", "gather"},        {"topk:5%,int4,ef21", "two_shot"},
                           {"topk:5%,ef21", "gtopk"},         {"int4,stochastic,ef21", "two_shot"},
                           {"randomk:5%,ef21", "sum"},        {"bf16,ef21", "dense"}};

TEST(ReducerEf21, TheEstimateIsTheMeanOfWhatRanksHaveSent) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(concat(c.spec, " ", c.exchange));
    std::vector<Outcome> outcomes(3);
    const auto ends = run_ranks(3, [&](Transport& transport) {
      Reducer reducer(plan_with(c.spec, c.exchange), transport, {.streams = 2});
      steps(reducer, transport.rank(), 0, 12);
      outcomes[static_cast<size_t>(transport.rank())] = {means(reducer), residuals(reducer)};
    });
    ASSERT_EQ(first_message(ends), "");
    expect_mean_of_what_was_sent(outcomes, 12);
  }
}

TEST(ReducerEf21, TheEstimateOfAGradientThatStaysBecomesTheGradient) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(concat(c.spec, " ", c.exchange));
    const Values parts[] = {gradients(0, 0), gradients(1, 0), gradients(2, 0)};
    double worst = 0;
    const auto ends = run_ranks(3, [&](Transport& transport) {
      Reducer reducer(plan_with(c.spec, c.exchange), transport);
      for (int step = 0; step < 350; ++step) {
        hand_over(reducer, gradients(transport.rank(), 0));
        reducer.wait();
      }
      const Values estimate = means(reducer);
      for (size_t p = 0; p < estimate.size() && transport.rank() == 0; ++p) {
        for (size_t i = 0; i < estimate[p].size(); ++i) {
          const double mean = (double{parts[0][p][i]} + double{parts[1][p][i]} +
                               double{parts[2][p][i]}) / 3;
          worst = std::max(worst, std::abs(double{estimate[p][i]} - mean));
        }
      }
    });
    EXPECT_EQ(first_message(ends), "");
    EXPECT_LT(worst, 1e-3);
  }
}

TEST(ReducerEf21, AStepThatIsSkippedLeavesEstimateAndResiduals) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    const int rank = transport.rank();
    const Plan plan = plan_with("topk:5%,ef21", "gather");
    Reducer reducer(plan, transport, {.on_nonfinite = OnNonFinite::kSkip});
    Reducer undisturbed(plan, transport);
    steps(undisturbed, rank, 0, 4);
    const Outcome expected{means(undisturbed), residuals(undisturbed)};
    steps(reducer, rank, 0, 3);
    Values bad = gradients(rank, 50);
    bad[4][7] = rank == 1 ? std::numeric_limits<float>::infinity() : bad[4][7];
    hand_over(reducer, bad);
    check(reducer.wait() == StepOutcome::kSkipped, "not skipped");
    steps(reducer, rank, 3, 4);
    check(Outcome{means(reducer), residuals(reducer)} == expected, "the step left a trace");
  });
  EXPECT_EQ(first_message(ends), "");
}

// Every payload is finite, and so is what each rank has sent; their sum is not.
TEST(ReducerEf21, AStepWhoseSumOverflowsIsLeftOut) {
  for (const Case& c : {Case{"topk:5%,ef21", "gather"}, Case{"none,ef21", "gather"},
                        Case{"randomk:5%,ef21", "sum"}, Case{"bf16,ef21", "gather"}}) {
    SCOPED_TRACE(concat(c.spec, " ", c.exchange));
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const int rank = transport.rank();
      const Plan plan = plan_with(c.spec, c.exchange);
      Reducer skips(plan, transport, {.on_nonfinite = OnNonFinite::kSkip});
      Reducer throws(plan, transport), undisturbed(plan, transport);
      for (Reducer* reducer : {&skips, &throws, &undisturbed}) {
        steps(*reducer, rank, 0, 3);
      }
      Values large = gradients(rank, 50);
      std::ranges::fill(large[4], 3e38f);
      hand_over(skips, large);
      check(skips.wait() == StepOutcome::kSkipped, "not skipped");
      hand_over(throws, large);
      const std::string error = message_of<NonFiniteGradient>([&] { throws.wait(); });
      check(error.find("step 3: the sum of the ranks' finite gradients overflows float32") !=
                error.npos,
            error);
      for (Reducer* reducer : {&skips, &throws, &undisturbed}) {
        steps(*reducer, rank, 3, 5);
      }
      const Outcome expected{means(undisturbed), residuals(undisturbed)};
      check(Outcome{means(skips), residuals(skips)} == expected, "a skipped step left a trace");
      check(Outcome{means(throws), residuals(throws)} == expected, "a refused step left a trace");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

// A loss scaler multiplies the loss, unscales what backward gives, and halves its scale when that
// was infinite: what is kept is in the units of what is handed over, so that no scale touches it.
TEST(ReducerResiduals, StayInUnscaledUnitsWhenALossScaleChanges) {
  for (const char* spec : {"topk:5%", "topk:5%,decay=0.9", "int4", "topk:5%,ef21"}) {
    SCOPED_TRACE(spec);
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer reducer(plan_with(spec, "gather"), transport, {.on_nonfinite = OnNonFinite::kSkip});
      Reducer unscaled(plan_with(spec, "gather"), transport);
      float scale = 0x1p127f;
      for (int step = 0; step < 5;) {
        const Values plain = gradients(rank, step);
        Values values = plain;
        for (auto& of_parameter : values) {
          for (float& value : of_parameter) {
            value = value * scale / scale;  // infinite where the scaled one is
          }
        }
        hand_over(reducer, values);
        if (reducer.wait() == StepOutcome::kSkipped) {
          scale /= 2;
          continue;
        }
        hand_over(unscaled, plain);
        unscaled.wait();
        check(same_bits(residuals(reducer), residuals(unscaled)), "step ", step);
        check(same_bits(means(reducer), means(unscaled)), "means of step ", step);
        scale = ++step == 3 ? 0x1p127f : scale;  // it also grows again
      }
      check(reducer.skipped_steps() >= 2, "the scale never changed");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerEf21, AChangedPlanTakesEstimateAndResidualsAlong) {
  std::vector<Outcome> outcomes(3);
  const auto ends = run_ranks(3, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_with("topk:5%,ef21", "gather"), transport);
    steps(reducer, rank, 0, 4);
    const Values before = residuals(reducer);
    reducer.set_plan(plan_with("topk:3%,int8,ef21", "two_shot", 40000));
    check(same_bits(residuals(reducer), before), "other residuals");
    steps(reducer, rank, 4, 9);
    outcomes[static_cast<size_t>(rank)] = {means(reducer), residuals(reducer)};
  });
  ASSERT_EQ(first_message(ends), "");
  expect_mean_of_what_was_sent(outcomes, 9);
}

// What waits under a plan with plain feedback goes into the next gradient; what EF21 keeps waits for
// nothing.
TEST(ReducerEf21, APlanWithoutEf21StartsAnewAndOneWithItTakesWhatWaited) {
  const auto ends = run_ranks(1, [&](Transport& transport) {
    const Plan exact = plan_with("topk:100%,ef21", "gather"), plain = plan_with("topk:5%", "gather");
    Reducer reducer(plain, transport);
    steps(reducer, 0, 0, 1);
    const Values waiting = residuals(reducer);
    reducer.set_plan(exact);
    std::ostringstream out;
    const std::string said = message_of<InvalidArgument>([&] { reducer.save(out); });
    check(contains(said, "has a residual of the plan before ef21"), said);
    Values expected = gradients(0, 1);
    steps(reducer, 0, 1, 2);
    const Values got = means(reducer);
    for (size_t p = 0; p < expected.size(); ++p) {
      for (size_t i = 0; i < expected[p].size(); ++i) {
        check(got[p][i] == expected[p][i] + waiting[p][i], "element ", i, " of parameter ", p);
      }
    }
    reducer.set_plan(plain);
    for (const auto& residual : residuals(reducer)) {
      check(std::ranges::all_of(residual, [](float x) { return x == 0; }), "something waits");
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerEf21, ACheckpointContinuesBitForBitOrFromTheEstimate) {
  const Plan plan = plan_with("topk:5%,ef21", "two_shot");
  for (const int after : {1, 2, 3, 5}) {
    SCOPED_TRACE(after);
    std::vector<std::string> files(3);
    std::vector<Outcome> saved(3), continued(3), outcomes(static_cast<size_t>(after));
    auto ends = run_ranks(3, [&](Transport& transport) {
      const auto rank = static_cast<size_t>(transport.rank());
      Reducer reducer(plan, transport);
      steps(reducer, transport.rank(), 0, 5);
      saved[rank] = {means(reducer), residuals(reducer)};
      std::ostringstream out;
      reducer.save(out);
      files[rank] = out.str();
      steps(reducer, transport.rank(), 5, 8);
      continued[rank] = {means(reducer), residuals(reducer)};
    });
    EXPECT_EQ(first_message(ends), "");
    ends = run_ranks(after, [&](Transport& transport) {
      const auto rank = static_cast<size_t>(transport.rank());
      Reducer reducer(plan, transport);
      reducer.load([&](int r) -> std::unique_ptr<std::istream> {
        const auto file = static_cast<size_t>(r);
        return file < 3 ? std::make_unique<std::istringstream>(files[file]) : nullptr;
      });
      for (size_t p = 0; p < model().size() && after != 3; ++p) {
        for (size_t i = 0; i < model()[p].numel(); ++i) {
          check(residuals(reducer)[p][i] == -saved[0].means[p][i], "not the estimate");
          i += 997;
        }
      }
      steps(reducer, transport.rank(), 5, 8);
      outcomes[rank] = {means(reducer), residuals(reducer)};
      check(after != 3 || outcomes[rank] == continued[rank], "other bits");
    });
    ASSERT_EQ(first_message(ends), "");
    expect_mean_of_what_was_sent(outcomes, 8);
  }
}

// Reducers that were alone until now, one of them a step ahead, as after a death.
TEST(ReducerEf21, RebuildingGivesAllRanksTheNewestEstimate) {
  std::vector<Outcome> outcomes(2);
  const auto ends = run_ranks(2, [&](Transport& together) {
    const int rank = together.rank();
    const auto alone = make_in_process_group(1);
    Reducer reducer(plan_with("topk:5%,ef21", "gather"), *alone[0]);
    steps(reducer, 0, 0, 2 + rank);
    const Values before = residuals(reducer);
    if (rank == 0) {
      hand_over(reducer, gradients(0, 2));  // begun, and never committed
    }
    const Reducer::Rebuilt rebuilt = reducer.rebuild(together);
    check(rebuilt.source == 1 && rebuilt.behind == (rank == 0), "source ", rebuilt.source);
    check(rank == 0 || residuals(reducer) == before, "the newest has what it had");
    steps(reducer, rank, 3, 8);
    outcomes[static_cast<size_t>(rank)] = {means(reducer), residuals(reducer)};
  });
  ASSERT_EQ(first_message(ends), "");
  expect_mean_of_what_was_sent(outcomes, 8);
}

// What a plan before left waits beside the estimate, and a group that is rebuilt meanwhile still sends it.
TEST(ReducerEf21, RebuildingKeepsWhatWaitsForTheNextGradient) {
  std::vector<Values> waiting(2);
  const auto ends = run_ranks(2, [&](Transport& together) {
    const auto rank = static_cast<size_t>(together.rank());
    const auto alone = make_in_process_group(1);
    Reducer reducer(plan_with("topk:5%", "gather"), *alone[0]);
    steps(reducer, together.rank(), 0, 1);
    waiting[rank] = residuals(reducer);
    reducer.set_plan(plan_with("topk:100%,ef21", "gather"));
    reducer.rebuild(together);
    Workspace workspace;
    const auto stream = make_cpu_stream();
    Context context{*stream, workspace};
    together.barrier({}, context);
    stream->wait();
    hand_over(reducer, changed(gradients(0, 1), [](float) { return 0.0f; }));
    reducer.wait();
    const Values got = means(reducer);  // 1 rank then, 2 now: times 2, and the mean of both
    for (size_t p = 0; p < got.size(); ++p) {
      for (size_t i = 0; i < got[p].size(); ++i) {
        const float sum = 2 * waiting[0][p][i] + 2 * waiting[1][p][i];
        check(got[p][i] == 0.5f * sum, "element ", i, " of parameter ", p, " is ", got[p][i]);
      }
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerEf21, WhatItCannotDoIsSaid) {
  PlanOptions options;
  options.spec = parse_spec("topk:5%,ef21");
  options.dtype = DType::kBFloat16;
  EXPECT_EQ(message_of<InvalidArgument>([&] { make_plan(model(), options); }),
            "plan: 'topk:5%,ef21' of bfloat16 gradients, expected float32: the estimate adds up in the "
            "gradient");
  EXPECT_EQ(message_of<InvalidArgument>([&] { plan_with("topk:5%,ef21", "hierarchical"); }),
            "plan: exchange 'hierarchical' cannot carry 'topk:5%,ef21', expected any compressor "
            "without ef21, and not powersgd, since nodes share out parts of matrices");
  const auto ends = run_ranks(1, [&](Transport& transport) {
    Reducer reducer(plan_with("topk:5%,ef21", "gather"), transport);
    const std::string said =
        message_of<InvalidArgument>([&] { reducer.deliver(0, Delivery::kPayloads); });
    check(contains(said, "has a group with ef21, whose payloads are no gradient"), said);
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
