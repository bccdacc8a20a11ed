// A reducer that goes in the middle of a step: the others hear why, and need not wait for their
// deadline. One that goes between steps leaves the group as it is.

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

/// How rank 1 leaves.
using Leaving = std::function<void(std::unique_ptr<Reducer> reducer)>;

/// What ranks 0 and 2 end with when rank 1 leaves a step so; nothing of it may have been sent.
void expect_told(const Leaving& leave, const std::string& words, const ReducerOptions& options) {
  const auto ends = run_ranks(3, [&](Transport& transport) {
    auto reducer = std::make_unique<Reducer>(plan_of("int8"), transport, options);
    hand_over(*reducer, gradients(transport.rank(), 0));
    reducer->wait();
    if (transport.rank() == 1) {
      leave(std::move(reducer));
      return;
    }
    hand_over(*reducer, gradients(transport.rank(), 1));
    reducer->wait();
  });
  for (const size_t r : {0u, 2u}) {
    EXPECT_TRUE(ends[r].threw<TransportError>());
    EXPECT_TRUE(contains(ends[r].message, words)) << ends[r].message;
  }
}

// Of the bucket that leaves first one gradient is missing.
void begin(Reducer& reducer) { hand_over(reducer, gradients(1, 1), {7}); }

void accumulate(Reducer& reducer) {
  const Values mine = gradients(1, 1);
  reducer.accumulate(7, view_of(std::span<const float>(mine[7])));
}

TEST(ReducerLeaving, OfAStepOfWhichNothingHasLeftYetIsToldToTheOthersWithWhatHappened) {
  const std::string where = "rank 1's reducer ended in the middle of step 1, with ";
  for (const LaunchOrder order : {LaunchOrder::kPlan, LaunchOrder::kAgreed}) {
    const ReducerOptions options{.streams = order == LaunchOrder::kPlan ? 1 : 2,
                                 .launch_order = order};
    expect_told(
        [](std::unique_ptr<Reducer> reducer) {
          begin(*reducer);
          throw std::runtime_error("out of memory in backward");
        },
        where + "1 of 8 gradients ready, while an exception left the code that was using it",
        options);
    expect_told(
        [](std::unique_ptr<Reducer> reducer) {
          begin(*reducer);
          try {
            throw std::runtime_error("out of memory in backward");
          } catch (const std::exception&) {
            reducer.reset();
          }
        },
        where + "1 of 8 gradients ready, behind an exception: out of memory in backward", options);
    expect_told([](std::unique_ptr<Reducer> reducer) { begin(*reducer); },
                where + "1 of 8 gradients ready, before wait()", options);
    expect_told([](std::unique_ptr<Reducer> reducer) { accumulate(*reducer); },
                where + "0 of 8 gradients ready, before wait()", options);
    expect_told(
        [](std::unique_ptr<Reducer> reducer) {
          const Reducer::NoSync scope(*reducer);
          begin(*reducer);
          throw std::runtime_error("out of memory in the first pass");
        },
        where + "0 of 8 gradients ready, while an exception left", options);
  }
}

TEST(ReducerLeaving, BetweenStepsLeavesTheGroupToAnotherOne) {
  const auto ends = run_ranks(3, [](Transport& transport) {
    Values bad = gradients(transport.rank(), 0);
    bad[4][0] = std::numeric_limits<float>::quiet_NaN();
    try {
      Reducer reducer(plan_of("int8"), transport);
      hand_over(reducer, bad);
      reducer.wait();
    } catch (const NonFiniteGradient&) {  // which ends the step, and the scope around it
    }
    {
      const Reducer unused(plan_of("int8"), transport);
    }
    Reducer reducer(plan_of("int8"), transport);
    hand_over(reducer, gradients(transport.rank(), 0));
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
