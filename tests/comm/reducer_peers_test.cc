// Mistakes that were found in other projects' gradient exchanges, as tests of the plan and the Reducer.

#include <gtest/gtest.h>

#include <limits>

#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

// torchft's bucketised all-reduce moves on by the size of a bucket even where the next tensor did not fit: of
// [60, 60, 60] elements with room for 100 the third is never reduced, of [150, 10] none is. Its
// callbacks also share variables of the loop, so that late ones may unpack another bucket.
TEST(ReducerPeers, EveryElementIsReducedExactlyOnce) {
  struct Sizes {
    std::vector<size_t> numels;
    size_t room;
  };
  std::vector<Sizes> cases = {{{60, 60, 60}, 100}, {{150, 10}, 100}, {{100}, 100}, {{1, 100, 1}, 100}};
  std::mt19937 random(5);
  for (int i = 0; i < 6; ++i) {
    Sizes& drawn = cases.emplace_back(Sizes{{}, 1 + random() % 300});
    drawn.numels.resize(1 + random() % 12);
    std::ranges::generate(drawn.numels, [&] { return 1 + random() % 250; });
  }
  for (const Sizes& c : cases) {
    std::vector<ParamInfo> parameters;
    size_t total = 0;
    for (const size_t numel : c.numels) {
      parameters.push_back({concat("p", parameters.size()), {numel}});
      total += numel;
    }
    PlanOptions options;
    options.spec = parse_spec("none");
    options.bucket_bytes = c.room * sizeof(float);
    const Plan plan = make_plan(parameters, options);
    size_t planned = 0;
    for (const PlanBucket& bucket : plan.buckets) {
      planned += bucket.numel;
      const bool one = bucket.groups.size() == 1 && bucket.groups[0].segments.size() == 1;
      EXPECT_TRUE(bucket.numel <= c.room || one) << "only a parameter alone may need more room";
    }
    EXPECT_EQ(planned, total);
    const auto ends = run_ranks(3, [&](Transport& transport) {
      Reducer reducer(plan, transport, {.streams = 2});
      for (int step = 0; step < 2; ++step) {
        // A number of its own for every element of every rank, small enough for exact sums.
        const auto value = [&](size_t element, int rank) {
          return static_cast<float>(3 * (4 * element + static_cast<size_t>(rank + step)));
        };
        size_t element = 0;
        for (ParamId p = 0; p < parameters.size(); ++p) {
          for (float& x : reducer.gradient(p).as<float>()) {
            x = value(element++, transport.rank());
          }
        }
        std::vector<ParamId> order(parameters.size());
        std::iota(order.begin(), order.end(), ParamId{0});
        std::shuffle(order.begin(), order.end(),
                     std::mt19937(static_cast<unsigned>(7 * transport.rank() + step)));
        for (const ParamId p : order) {
          reducer.grad_ready(p);
        }
        check(reducer.wait() == StepOutcome::kCommitted, "not committed");
        element = 0;
        for (ParamId p = 0; p < parameters.size(); ++p) {
          for (const float x : reducer.gradient(p).as<float>()) {
            check(std::abs(x - value(element, 1)) <= 1e-6f * x, "element ", element, " is ", x,
                  ", expected the mean ", value(element, 1));
            ++element;
          }
        }
      }
    });
    EXPECT_EQ(first_message(ends), "") << total << " elements, room for " << c.room;
  }
}

/// What three ranks have after `steps` steps of a job with a loss scale: gradients are made scaled and
/// handed over unscaled, as a loss scaler does. The scale doubles after each step; in steps
/// `overflows` rank 2's overflows, which halves it.
std::vector<Outcome> scaled_run(const std::string& spec, int steps, const std::vector<int>& overflows) {
  std::vector<Outcome> outcomes(3);
  const auto ends = run_ranks(3, [&](Transport& transport) {
    Reducer reducer(plan_of(spec), transport, {.on_nonfinite = OnNonFinite::kSkip});
    float scale = 1024;
    for (int step = 0; step < steps; ++step) {
      Values mine = gradients(transport.rank(), step);
      const bool overflow = std::ranges::count(overflows, step) > 0;
      for (auto& parameter : mine) {
        for (float& value : parameter) {
          value = value * scale / scale;
        }
      }
      if (overflow) {
        if (transport.rank() == 2) {
          mine[6][31] = std::numeric_limits<float>::infinity();
        }
        hand_over(reducer, mine);
        check(reducer.wait() == StepOutcome::kSkipped, "not skipped");
        scale /= 2;
        mine = gradients(transport.rank(), step);  // the same batch again
      }
      hand_over(reducer, mine);
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
      scale *= 2;
    }
    check(reducer.skipped_steps() == overflows.size(), "wrong counts");
    outcomes[static_cast<size_t>(transport.rank())] = {means(reducer), residuals(reducer)};
  });
  EXPECT_EQ(first_message(ends), "") << spec;
  return outcomes;
}

// DeepSpeed's LoCo rescales its residuals when the loss scale changes and deletes them after an overflow;
// others (PyTorch's issue 76282, DeepSpeed's 753) let them go wrong. In units of the gradient there
// is nothing to rescale, and an overflow on one rank leaves no trace on any.
TEST(ReducerPeers, LossScalesAndOverflowsLeaveNoTraceInResiduals) {
  std::vector<std::string> specs;
  for (const CompressorRow& row : compressor_registry()) {
    specs.push_back(std::string(row.example));
  }
  for (const std::string& spec : specs) {
    SCOPED_TRACE(spec);
    const auto clean = scaled_run(spec, 4, {});
    const auto scaled = scaled_run(spec, 4, {1, 3});
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_TRUE(scaled[r] == clean[r]) << "rank " << r;
    }
  }
}

}  // namespace
}  // namespace gradwire::test
