// Gradients of several backward passes, and gradients that never come.

#include <gtest/gtest.h>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

ConstGradient view(const std::vector<float>& values) {
  return view_of(std::span<const float>(values));
}

Values sum_of(const Values& a, const Values& b) {
  Values sum = a;
  for (size_t p = 0; p < a.size(); ++p) {
    for (size_t i = 0; i < a[p].size(); ++i) {
      sum[p][i] += b[p][i];
    }
  }
  return sum;
}

// One step per pair of passes, the sums handed over at once.
std::vector<Outcome> run_sums(const std::string& spec) {
  std::vector<Outcome> outcomes(3);
  const auto ends = run_ranks(3, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_of(spec), transport);
    for (int step = 0; step < 3; ++step) {
      hand_over(reducer, sum_of(gradients(rank, 2 * step), gradients(rank, 2 * step + 1)));
      reducer.wait();
    }
    outcomes[static_cast<size_t>(rank)] = {means(reducer), residuals(reducer)};
  });
  EXPECT_EQ(first_message(ends), "");
  return outcomes;
}

TEST(ReducerGradients, OfSeveralPassesAreReducedOnceAsTheirSum) {
  for (const char* spec : {"none", "topk:5%,int4"}) {
    const auto expected = run_sums(spec);
    for (const int streams : {1, 2, 4}) {
      const auto ends = run_ranks(3, [&](Transport& transport) {
        const int rank = transport.rank();
        Reducer reducer(plan_of(spec), transport, {.streams = streams});
        for (int step = 0; step < 3; ++step) {
          const Values first = gradients(rank, 2 * step), second = gradients(rank, 2 * step + 1);
          for (const ParamId p : forward_order()) {
            reducer.accumulate(p, view(first[p]));
          }
          for (const ParamId p : backward_order()) {
            reducer.accumulate(p, view(second[p]));
            reducer.grad_ready(p);
          }
          reducer.wait();
        }
        const Outcome outcome{means(reducer), residuals(reducer)};
        check(outcome == expected[static_cast<size_t>(rank)], "another result");
        check(reducer.committed_steps() == 3, "a pass was committed alone");
      });
      EXPECT_EQ(first_message(ends), "") << spec << " " << streams;
    }
  }
}

TEST(ReducerGradients, OfBackwardsThatAddAreHeldBackByNoSync) {
  const auto expected = run_sums("int8");
  const auto ends = run_ranks(3, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_of("int8"), transport, {.streams = 2});
    for (int step = 0; step < 3; ++step) {
      const uint64_t sent = transport.counters().bytes_sent;
      {
        Reducer::NoSync no_sync(reducer);
        hand_over(reducer, gradients(rank, 2 * step));
        const std::string refusal = message_of<InvalidArgument>([&] { reducer.wait(); });
        check(refusal == concat("wait: a NoSync lives in step ", step,
                                ", expected a call after the pass that is exchanged"),
              refusal);
      }
      const std::string begun =
          message_of<InvalidArgument>([&] { reducer.set_plan(plan_of("int8", 64)); });
      check(contains(begun, "has begun"), begun);
      check(transport.counters().bytes_sent == sent, "the first pass was sent");
      hand_over(reducer, sum_of(gradients(rank, 2 * step), gradients(rank, 2 * step + 1)));
      const std::string late = message_of<InvalidArgument>([&] { Reducer::NoSync scope(reducer); });
      check(contains(late, "are already ready, expected a scope before the last"), late);
      reducer.wait();
    }
    const Outcome outcome{means(reducer), residuals(reducer)};
    check(outcome == expected[static_cast<size_t>(rank)], "another result");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerGradients, AreNotAccumulatedFromWrongViews) {
  const auto ends = run_ranks(1, [&](Transport& transport) {
    Reducer reducer(plan_of("none"), transport);
    const std::vector<float> three(3);
    const std::string size =
        message_of<InvalidArgument>([&] { reducer.accumulate(7, view(three)); });
    check(size == "accumulate: parameter 7 is given 3 elements of float32 on the CPU, expected 10 of "
                  "float32 on the CPU",
          size);
    reducer.grad_ready(7);
    const std::string late = message_of<InvalidArgument>(
        [&] { reducer.accumulate(7, view(std::vector<float>(10))); });
    check(contains(late, "parameter 7 ('three.bias') is already ready in step 0"), late);
    const std::string unused = message_of<InvalidArgument>([&] { reducer.mark_unused(7); });
    check(contains(unused, "mark_unused: parameter 7"), unused);
  });
  EXPECT_EQ(first_message(ends), "");
}

// Rank 0 reaches parameters 0 to 5, the others all but 4; nobody 6 in odd steps.
bool reaches(int rank, int step, ParamId p) {
  if (p == 6 && step % 2 == 1) {
    return false;
  }
  return rank == 0 ? p <= 5 || p == 6 : p != 4;
}

enum class How { kZerosByHand, kMarked, kAtWait };

std::vector<Outcome> run_with_unused(const std::string& spec, How how, int streams) {
  std::vector<Outcome> outcomes(3);
  const auto ends = run_ranks(3, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_of(spec), transport,
                    {.unused = how == How::kZerosByHand ? UnusedParameters::kError
                                                        : UnusedParameters::kZero,
                     .streams = streams});
    for (int step = 0; step < 4; ++step) {
      const Values mine = gradients(rank, step);
      for (const ParamId p : backward_order()) {
        if (reaches(rank, step, p)) {
          write_gradient(reducer, p, mine);
          reducer.grad_ready(p);
        } else if (how == How::kMarked) {
          reducer.mark_unused(p);
        } else if (how == How::kZerosByHand) {
          const auto place = reducer.gradient(p).as<float>();
          std::fill(place.begin(), place.end(), 0.0f);
          reducer.grad_ready(p);
        }
      }
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
      for (const ParamId p : forward_order()) {
        check(how == How::kZerosByHand || reducer.unused_everywhere(p) == (p == 6 && step % 2 == 1),
              "parameter ", p, " in step ", step);
      }
    }
    outcomes[static_cast<size_t>(rank)] = {means(reducer), residuals(reducer)};
  });
  EXPECT_EQ(first_message(ends), "") << spec;
  return outcomes;
}

TEST(ReducerGradients, ThatNeverComeAreZerosAndAllRanksKnowOfWhichNobodyHad) {
  for (const char* spec : {"none", "int8", "topk:5%,int4"}) {
    const auto expected = run_with_unused(spec, How::kZerosByHand, 1);
    for (const int streams : {1, 2, 4}) {
      for (const How how : {How::kMarked, How::kAtWait}) {
        const auto outcomes = run_with_unused(spec, how, streams);
        for (size_t r = 0; r < 3; ++r) {
          EXPECT_TRUE(outcomes[r] == expected[r]) << spec << " " << streams << " rank " << r;
          EXPECT_TRUE(same_bits(outcomes[r].means, expected[0].means));
        }
      }
    }
  }
}

TEST(ReducerGradients, AccumulatedInAnEarlierPassAreNotLostWhenTheLastOneDoesNotReachThem) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    Reducer reducer(plan_of("none"), transport, {.unused = UnusedParameters::kZero});
    const Values mine = gradients(transport.rank(), 0);
    for (const ParamId p : forward_order()) {
      reducer.accumulate(p, view(mine[p]));
    }
    reducer.mark_unused(5);
    reducer.wait();
    const Values a = gradients(0, 0), b = gradients(1, 0);
    for (const ParamId p : forward_order()) {
      check(!reducer.unused_everywhere(p), "parameter ", p, " was used");
      for (size_t i = 0; i < mine[p].size(); ++i) {
        check(reducer.gradient(p).as<float>()[i] == (a[p][i] + b[p][i]) * 0.5f, "parameter ", p);
      }
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerGradients, WhoWasUnusedIsOnlyKnownWhenAskedFor) {
  const auto ends = run_ranks(1, [](Transport& transport) {
    Reducer reducer(plan_of("none"), transport);
    const std::string refusal =
        message_of<InvalidArgument>([&] { static_cast<void>(reducer.unused_everywhere(0)); });
    check(contains(refusal, "expected UnusedParameters::kZero"), refusal);

    const Reducer early(plan_of("none"), transport, {.unused = UnusedParameters::kZero});
    const std::string too_soon =
        message_of<InvalidArgument>([&] { static_cast<void>(early.unused_everywhere(0)); });
    check(contains(too_soon, "no step has been concluded yet"), too_soon);
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerGradients, AStepThatFailedSaysNothingOfWhoWasUnused) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    Reducer reducer(plan_of("none"), transport, {.unused = UnusedParameters::kZero});
    const std::string failure = message_of<TransportError>([&] {
      if (transport.rank() == 1) {
        transport.abort("the operator pulled the plug");
      }
      hand_over(reducer, gradients(transport.rank(), 0));
      reducer.wait();
    });
    check(!failure.empty(), "the step did not fail");
    const std::string said =
        message_of<InvalidArgument>([&] { static_cast<void>(reducer.unused_everywhere(0)); });
    check(contains(said, "no step has been concluded yet"), said);
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
