// What a Reducer does when a gradient, a caller, a plan or a rank is wrong.

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <limits>
#include <sstream>
#include <thread>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

constexpr const char* kSpecs[] = {"none", "bf16,ef", "int8,stochastic", "topk:5%,int4"};
constexpr int kStreams[] = {1, 2, 4};

struct BadStep {
  Outcome before, after, next;
  std::string message;
  bool nonfinite_type = false;
};

// Steps 0, a bad one (parameter 4 of rank 1 holds `value`) unless it is left out, and 2.
std::vector<BadStep> run_bad_step(const std::string& spec, bool with_bad_step, float value,
                                  int streams = 1) {
  std::vector<BadStep> results(3);
  const auto ends = run_ranks(3, [&](Transport& transport) {
    BadStep& result = results[static_cast<size_t>(transport.rank())];
    Reducer reducer(plan_of(spec), transport, {.streams = streams});
    hand_over(reducer, gradients(transport.rank(), 0));
    reducer.wait();
    result.before.residuals = residuals(reducer);
    if (with_bad_step) {
      Values mine = gradients(transport.rank(), 1);
      if (transport.rank() == 1) {
        mine[4][777] = value;
      }
      hand_over(reducer, mine);
      result.message = message_of<NonFiniteGradient>([&] { reducer.wait(); });
      check(reducer.committed_steps() == 1 && reducer.skipped_steps() == 1, "wrong counts");
    }
    result.after.residuals = residuals(reducer);
    hand_over(reducer, gradients(transport.rank(), 2));
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    result.next = {means(reducer), residuals(reducer)};
  });
  EXPECT_EQ(first_message(ends), "") << spec;
  return results;
}

TEST(ReducerFaults, ANonFiniteGradientOnOneRankLeavesNoTraceOnAny) {
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const auto clean = run_bad_step(spec, false, 0.0f);
    for (const int streams : kStreams) {
      const float value = streams == 2 ? -std::numeric_limits<float>::infinity()
                                       : std::numeric_limits<float>::quiet_NaN();
      const auto bad = run_bad_step(spec, true, value, streams);
      const std::string bucket = concat("bucket ", plan_of(spec).places[4].bucket, " (");
      for (size_t r = 0; r < 3; ++r) {
        EXPECT_TRUE(contains(bad[r].message, bucket)) << bad[r].message;
        EXPECT_TRUE(contains(bad[r].message, "step 1: rank 1's gradient")) << bad[r].message;
        EXPECT_TRUE(bad[r].after == bad[r].before) << "residuals of rank " << r << " changed";
        EXPECT_TRUE(bad[r].next == clean[r].next) << "the step after differs on rank " << r;
      }
    }
  }
}

// The first step cuts the regions of two_shot, by payloads that are empty where all is NaN.
TEST(ReducerFaults, ARefusedStepLeavesWhatTheExchangeLearned) {
  std::vector<std::vector<Outcome>> outcomes(3, std::vector<Outcome>(2));
  const auto ends = run_ranks(3, [&](Transport& transport) {
    const auto saved = [](const Reducer& reducer) {
      std::ostringstream out;
      reducer.save(out);
      return out.str();
    };
    for (const bool refused : {false, true}) {
      Reducer reducer(plan_of("topk:2%", 1 << 20, "two_shot"), transport,
                      {.on_nonfinite = OnNonFinite::kSkip});
      if (refused) {
        const std::string before = saved(reducer);
        const float nan = std::numeric_limits<float>::quiet_NaN();
        hand_over(reducer, changed(gradients(0, 0), [nan](float) { return nan; }));
        check(reducer.wait() == StepOutcome::kSkipped, "not skipped");
        const std::string after = saved(reducer);
        check(after.size() == before.size(), "what is kept grew from ", before.size(), " to ",
              after.size(), " bytes");
      }
      for (int step = 0; step < 3; ++step) {
        hand_over(reducer, gradients(transport.rank(), step));
        reducer.wait();
      }
      outcomes[static_cast<size_t>(transport.rank())][refused ? 1 : 0] = {means(reducer),
                                                                          residuals(reducer)};
    }
  });
  EXPECT_EQ(first_message(ends), "");
  for (const auto& of_rank : outcomes) {
    EXPECT_TRUE(of_rank[0] == of_rank[1]) << "other bits behind a refused step";
  }
}

TEST(ReducerFaults, SkipModeGivesZeroMeansAndCounts) {
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const auto ends = run_ranks(3, [&](Transport& transport) {
      Reducer reducer(plan_of(spec), transport, {.on_nonfinite = OnNonFinite::kSkip});
      Values mine = gradients(transport.rank(), 0);
      if (transport.rank() == 2) {
        mine[7][3] = std::numeric_limits<float>::infinity();
      }
      hand_over(reducer, mine);
      check(reducer.wait() == StepOutcome::kSkipped, "not skipped");
      for (const auto& mean : means(reducer)) {
        check(mean == std::vector<float>(mean.size(), 0.0f), "a mean is not zero");
      }
      check(reducer.skipped_steps() == 1 && reducer.committed_steps() == 0, "wrong counts");
      check(!reducer.trace().last().committed, "the trace says committed");
      hand_over(reducer, gradients(transport.rank(), 1));
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerFaults, SkipModeGivesNaNWhereThatIsAskedFor) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const auto ends = run_ranks(2, [dtype](Transport& transport) {
      PlanOptions how;
      how.dtype = dtype;
      const std::vector<ParamInfo> parameters{{"w", {70}}};
      Reducer reducer(make_plan(parameters, how), transport,
                      {.on_nonfinite = OnNonFinite::kSkip, .left_out = MeansLeftOut::kNaN});
      const Gradient place = reducer.gradient(0);
      dispatch(dtype, [&]<class T>() {
        std::ranges::fill(place.as<T>(), from_float<T>(1.0f));
        place.as<T>()[3] = from_float<T>(transport.rank() == 1 ? NAN : 1.0f);
        reducer.grad_ready(0);
        check(reducer.wait() == StepOutcome::kSkipped, "not skipped");
        check(std::ranges::all_of(place.as<T>(), [](T x) { return std::isnan(to_float(x)); }),
              "a mean is not NaN");
      });
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerFaults, MissingGradientsAreNamedAndTheStepGoesOn) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan_of("int8"), transport);
    const Values mine = gradients(transport.rank(), 0);
    hand_over(reducer, mine, {7, 6});
    const std::string many = message_of<InvalidArgument>([&] { reducer.wait(); });
    check(many ==
              "wait: 6 of 8 parameters have no gradient in step 0: 'embed.weight', "
              "'one.weight', 'one.bias', 'temperature', 'two.weight', ..., expected "
              "grad_ready() for each",
          many);
    hand_over(reducer, mine, {0, 1, 2, 4, 5});
    const std::string one = message_of<InvalidArgument>([&] { reducer.wait(); });
    check(contains(one, "1 of 8 parameters have no gradient in step 0: 'temperature', expected"),
          one);
    hand_over(reducer, mine, {3});
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerFaults, WrongCallsAreRefusedAndTheStepGoesOn) {
  const auto ends = run_ranks(1, [&](Transport& transport) {
    Reducer reducer(plan_of("none"), transport);
    reducer.grad_ready(3);
    const auto refusal = [](const auto& call) { return message_of<InvalidArgument>(call); };
    const std::string twice = refusal([&] { reducer.grad_ready(3); });
    check(twice ==
              "grad_ready: parameter 3 ('temperature') is already ready in step 0, expected "
              "once a step",
          twice);
    const std::string unknown = refusal([&] { reducer.grad_ready(8); });
    check(unknown == "grad_ready: parameter 8 is not in the plan of 8 parameters", unknown);
    check(!refusal([&] { reducer.gradient(8); }).empty(), "gradient(8) was given");
    check(!refusal([&] { reducer.residual(8); }).empty(), "residual(8) was given");

    std::vector<float> whole(reducer.plan().buckets[reducer.plan().places[3].bucket].numel);
    const std::string mixed = refusal(
        [&] { reducer.bucket_ready(reducer.plan().places[3].bucket, view_of(std::span(whole))); });
    check(contains(mixed, "parameters of bucket"), mixed);
    whole.resize(3);
    const std::string size = refusal([&] { reducer.bucket_ready(0, view_of(std::span(whole))); });
    check(contains(size, "bucket 0's gradient has 3 elements of float32 on the CPU, expected"), size);
    const std::string no_bucket =
        refusal([&] { reducer.bucket_ready(99, view_of(std::span(whole))); });
    check(contains(no_bucket, "bucket 99 is not in the plan"), no_bucket);

    hand_over(reducer, gradients(0, 0), {0, 1, 2, 4, 5, 6, 7});
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
  });
  EXPECT_EQ(first_message(ends), "");
}

std::vector<RankEnd> construct(const std::function<Plan(int)>& plan,
                               const std::function<ReducerOptions(int)>& options) {
  return run_ranks(4, [&](Transport& transport) {
    Reducer reducer(plan(transport.rank()), transport, options(transport.rank()));
  });
}

void expect_refused_everywhere(const std::vector<RankEnd>& ends, const std::string& message) {
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.message, message);
    EXPECT_TRUE(end.threw<InvalidArgument>());
  }
}

TEST(ReducerFaults, RanksWithDifferentPlansAllLearnWhoDiffersWhere) {
  const auto defaults = [](int) { return ReducerOptions{}; };
  const auto a_spec = construct(
      [](int rank) { return plan_of(rank >= 2 ? "fp16" : "bf16", 1 << 20, "gather"); }, defaults);
  const size_t numel = 2000 + 2112 + 33 + 1 + 6600 + 200 + 8000 + 10;
  expect_refused_everywhere(
      a_spec, concat("rank 2's plan differs from rank 0's at line 3: '  group 0: fp16, ", numel,
                     " elements, capacity ", 2 * numel + 32, " bytes' expected '  group 0: bf16, ",
                     numel, " elements, capacity ", 2 * numel + 32, " bytes'"));

  const auto a_shape = construct(
      [](int rank) {
        auto parameters = model();
        if (rank == 3) {
          parameters[7].shape = {5, 2};
        }
        return make_plan(parameters, {});
      },
      defaults);
  expect_refused_everywhere(a_shape,
                            "rank 3's plan differs from rank 0's at line 4: '    parameter 7: "
                            "three.bias [5, 2] at 0' expected '    parameter 7: three.bias [10] "
                            "at 0'");

  const auto an_option = construct(
      [](int) { return plan_of("none"); },
      [](int rank) {
        return ReducerOptions{.on_nonfinite = rank == 1 ? OnNonFinite::kSkip : OnNonFinite::kError};
      });
  const auto streams = construct([](int) { return plan_of("none"); },
                                 [](int rank) { return ReducerOptions{.streams = rank + 1}; });
  for (const RankEnd& end : streams) {
    EXPECT_TRUE(contains(end.message, "'streams: 2' expected 'streams: 1'")) << end.message;
  }
  for (const RankEnd& end : an_option) {
    EXPECT_TRUE(contains(end.message, "rank 1's plan differs from rank 0's at line"))
        << end.message;
    EXPECT_TRUE(contains(end.message, "'on_nonfinite: skip' expected 'on_nonfinite: error'"));
  }
}

TEST(ReducerFaults, AnAbortInTheMiddleOfAStepEndsItOnEveryRankWithNothingCommitted) {
  for (const auto& [spec, streams] :
       {std::pair("int8", 1), std::pair("topk:5%,int4", 2), std::pair("int8", 4)}) {
    SCOPED_TRACE(spec);
    std::barrier first_step_over(3);
    const auto ends = run_ranks(3, [&, spec = spec, streams = streams](Transport& transport) {
      Reducer reducer(plan_of(spec), transport, {.streams = streams});
      hand_over(reducer, gradients(transport.rank(), 0));
      reducer.wait();
      first_step_over.arrive_and_wait();  // else the abort could hit a slower rank's first step
      const Values before = residuals(reducer);
      if (transport.rank() == 1) {
        transport.abort("the operator pulled the plug");
      }
      hand_over(reducer, gradients(transport.rank(), 1));
      const std::string message = message_of<TransportError>([&] { reducer.wait(); });
      check(streams > 1 || contains(message, "bucket 0 (gather, "), message);
      for (const char* part : {"bucket ", " (gather, ", ", step 1, rank ", ", after ", " ms: "}) {
        check(contains(message, part), message);
      }
      check(contains(message, "the operator pulled the plug"), message);
      check(same_bits(residuals(reducer), before), "residuals changed");
      check(reducer.committed_steps() == 1, "a step was committed");
      check(message_of<TransportError>([&] { reducer.wait(); }) == message, "wait() forgot");
      check(message_of<TransportError>([&] { reducer.grad_ready(0); }) == message,
            "grad_ready() forgot");
      check(message_of<TransportError>([&] { reducer.set_plan(plan_of(spec)); }) == message,
            "set_plan() forgot");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerFaults, ARankThatLeavesInTheMiddleOfAStepIsReportedByTheOthers) {
  const auto reports = [](const ReducerOptions& options) {
    const auto ends = run_ranks(3, [&](Transport& transport) {
      Reducer reducer(plan_of("int8"), transport, options);
      if (transport.rank() == 2) {
        hand_over(reducer, gradients(2, 0), {7, 6, 5, 4});
        throw std::runtime_error("out of patience");
      }
      hand_over(reducer, gradients(transport.rank(), 0));
      reducer.wait();
    });
    EXPECT_EQ(ends[2].message, "out of patience");
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_TRUE(ends[r].threw<TransportError>());
      EXPECT_TRUE(contains(ends[r].message, "rank 2's reducer ended in the middle of step 0"))
          << ends[r].message;
    }
  };
  for (const int streams : kStreams) {
    for (const LaunchOrder order : {LaunchOrder::kPlan, LaunchOrder::kAgreed}) {
      SCOPED_TRACE(concat(streams, " streams, ", order == LaunchOrder::kPlan ? "plan" : "agreed"));
      reports({.streams = streams, .launch_order = order});
    }
  }
}

TEST(ReducerFaults, ASilentRankIsReportedAtTheDeadline) {
  TransportOptions options;
  options.timeout = std::chrono::milliseconds(300);
  std::atomic<int> failed{0};
  const auto ends = run_ranks(
      3,
      [&](Transport& transport) {
        Reducer reducer(plan_of("int8"), transport);
        if (transport.rank() == 0) {
          while (failed < 2) {
            std::this_thread::yield();
          }
          return;
        }
        hand_over(reducer, gradients(transport.rank(), 0));
        const std::string message = message_of<TransportError>([&] { reducer.wait(); });
        ++failed;
        check(contains(message, "bucket 0 (gather, bf16), step 0, rank "), message);
        check(contains(message, " ms: all_gather of bucket 0: rank "), message);
        check(contains(message, "rank 0 stayed silent"), message);
      },
      options);
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
