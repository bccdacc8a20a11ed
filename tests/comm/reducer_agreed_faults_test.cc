// What a Reducer whose ranks agree on the order of buckets does when one of them is wrong, silent
// or gone.

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <limits>
#include <thread>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/transport_ranks.h"
#include "tests/comm/wrapped_transport.h"

namespace gradwire::test {
namespace {

constexpr size_t kManyBuckets = 2048;  // bytes of a bucket: one for nearly every parameter

ReducerOptions agreed(int streams) {
  return {.streams = streams, .launch_order = LaunchOrder::kAgreed};
}

/// @throws unless `message` has `part`, in words of which there are some also where it is empty.
void expect_said(const std::string& message, const std::string& part) {
  check(contains(message, part), "'", message, "' lacks '", part, "'");
}

struct Ended {
  Outcome before, after, next;
};

// Steps 0, one in which parameter 4 of rank 1 is not finite, and 2.
std::vector<Ended> run_bad_step(const ReducerOptions& options) {
  std::vector<Ended> results(3);
  const auto ends = run_ranks(3, [&](Transport& transport) {
    const int rank = transport.rank();
    Ended& result = results[static_cast<size_t>(rank)];
    Reducer reducer(plan_of("topk:5%,int4", kManyBuckets), transport, options);
    hand_over(reducer, gradients(rank, 0), random_order(static_cast<unsigned>(rank)));
    reducer.wait();
    result.before.residuals = residuals(reducer);
    Values mine = gradients(rank, 1);
    if (rank == 1) {
      mine[4][777] = std::numeric_limits<float>::quiet_NaN();
    }
    hand_over(reducer, mine, random_order(static_cast<unsigned>(10 + rank)));
    const std::string message = message_of<NonFiniteGradient>([&] { reducer.wait(); });
    const std::string bucket = concat("bucket ", reducer.plan().places[4].bucket, " (");
    expect_said(message, bucket);
    expect_said(message, "step 1: rank 1's gradient");
    result.after.residuals = residuals(reducer);
    hand_over(reducer, gradients(rank, 2), random_order(static_cast<unsigned>(20 + rank)));
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    result.next = {means(reducer), residuals(reducer)};
  });
  EXPECT_EQ(first_message(ends), "");
  return results;
}

TEST(ReducerAgreedFaults, ANonFiniteGradientLeavesNoTrace) {
  const auto expected = run_bad_step({});
  for (const int streams : {1, 3}) {
    const auto found = run_bad_step(agreed(streams));
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_TRUE(found[r].after == found[r].before) << "residuals of rank " << r << " changed";
      EXPECT_TRUE(found[r].next == expected[r].next) << "the step after differs on rank " << r;
    }
  }
}

TEST(ReducerAgreedFaults, ARankThatForgotOneCanStillHandItOver) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan_of("int8", kManyBuckets), transport, agreed(1));
    const Values mine = gradients(transport.rank(), 0);
    hand_over(reducer, mine, {0, 1, 2, 4, 5, 6, 7});
    const std::string one = message_of<InvalidArgument>([&] { reducer.wait(); });
    expect_said(one, "1 of 8 parameters have no gradient in step 0: 'temperature', expected");
    hand_over(reducer, mine, {3});
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
  });
  EXPECT_EQ(first_message(ends), "");
}

/// Over in_process and gloo; `body` says what rank 2 does, the others hand over all and fail.
template <class Body>
void expect_failure(const Body& of_rank_two, const std::vector<std::string>& said) {
  for (const std::string kind : {"in_process", "gloo"}) {
    if (!transport_test::unavailable(kind).empty()) {
      continue;
    }
    SCOPED_TRACE(kind);
    TransportOptions options;
    options.timeout = std::chrono::milliseconds(300);
    std::atomic<int> failed{0};
    const auto errors = transport_test::run_ranks(kind, 3, options, [&](transport_test::Rank rank) {
      Reducer reducer(plan_of("int8", kManyBuckets), rank.transport, agreed(1));
      if (rank.rank == 2) {
        of_rank_two(reducer);
        while (failed < 2) {
          std::this_thread::yield();
        }
        return;
      }
      hand_over(reducer, gradients(rank.rank, 0));
      const std::string message = message_of<TransportError>([&] { reducer.wait(); });
      ++failed;
      for (const std::string& part : said) {
        expect_said(message, part);
      }
      check(reducer.committed_steps() == 0, "committed");
      check(message_of<TransportError>([&] { reducer.grad_ready(0); }) == message,
            "grad_ready() forgot");
    });
    transport_test::expect_all_fine(errors);
  }
}

TEST(ReducerAgreedFaults, ARankThatNeverHasAnythingIsReportedAtTheDeadline) {
  expect_failure([](Reducer&) {}, {"ready buckets, step 0, rank ",
                                   " ms: all_gather of ready buckets: ", "rank 2 stayed silent"});
}

TEST(ReducerAgreedFaults, ARankThatStopsInTheMiddleIsReportedWithWhatIsMissing) {
  const Plan plan = plan_of("int8", kManyBuckets);
  const BucketId last = plan.places[0].bucket, other = last == 0 ? 1 : 0;
  expect_failure([](Reducer& reducer) { hand_over(reducer, gradients(2, 0), {0}); },
                 {"ready buckets, step 0, rank ", concat("waits for bucket ", other, " of rank 2"),
                  "rank 2 stayed silent"});
}

// Ranks 0 and 1 wait for each other and look again and again, rank 2 for both: in the end they look
// so seldom that the deadline passes.
TEST(ReducerAgreedFaults, RanksThatWaitForEachOtherForeverReachTheDeadline) {
  TransportOptions options;
  options.timeout = std::chrono::milliseconds(200);
  std::atomic<bool> over{false};
  const auto ends = run_ranks(
      3,
      [&](Transport& transport) {
        Reducer reducer(plan_of("int8", kManyBuckets), transport, agreed(1));
        const Values mine = gradients(transport.rank(), 0);
        const ParamId only[] = {6, 0};
        if (transport.rank() < 2) {
          hand_over(reducer, mine, {only[transport.rank()]});
          while (!over) {
            std::this_thread::yield();
          }
          return;
        }
        hand_over(reducer, mine);
        const std::string message = message_of<TransportError>([&] { reducer.wait(); });
        over = true;
        const auto bucket = [&](ParamId p) { return reducer.plan().places[p].bucket; };
        for (const std::string& part :
             {std::string("ready buckets, step 0, rank "),
              concat("bucket ", bucket(6), " of rank 1"),
              concat("bucket ", bucket(4), " of ranks 0 and 1"), std::string("stayed silent")}) {
          expect_said(message, part);
        }
      },
      options);
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerAgreedFaults, AnAbortReachesRanksThatWaitForNews) {
  std::barrier made(2);  // else the abort could hit the other one's constructor
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan_of("int8", kManyBuckets), transport, agreed(2));
    made.arrive_and_wait();
    hand_over(reducer, gradients(transport.rank(), 0), {transport.rank() == 0 ? 0u : 6u});
    if (transport.rank() == 0) {
      transport.abort("the operator pulled the plug");
    }
    const std::string message = message_of<TransportError>([&] {
      hand_over(reducer, gradients(transport.rank(), 0), {1, 2, 3, 4, 5});
      hand_over(reducer, gradients(transport.rank(), 0), {transport.rank() == 0 ? 6u : 0u, 7});
      reducer.wait();
    });
    expect_said(message, "the operator pulled the plug");
    expect_said(message, "ready buckets, step 0, rank ");
  });
  EXPECT_EQ(first_message(ends), "");
}

// Another rank's bits, changed on their way.
TEST(ReducerAgreedFaults, BitsThatCannotBeEndTheGroup) {
  const Plan plan = plan_of("int8", kManyBuckets);
  ASSERT_LT(plan.buckets.size(), 8u);  // there are bits that mean nothing
  const auto ends = run_ranks(2, [&](Transport& transport) {
    std::atomic<bool> corrupts{false};
    WrappedTransport wrapped(transport, [&](Parts all) {
      if (corrupts && all.stride == 1) {
        all.part(1)[0] |= std::byte{0x80};
      }
    });
    Reducer reducer(plan, wrapped, agreed(1));
    corrupts = true;
    hand_over(reducer, gradients(transport.rank(), 0));
    const std::string message = message_of<TransportError>([&] { reducer.wait(); });
    expect_said(message, "ready buckets, step 0, rank ");
    expect_said(message, concat("rank 1 says that bucket 7 is ready, expected only those below ",
                                plan.buckets.size()));
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerAgreedFaults, RanksAskedForDifferentOrdersAllLearnOfIt) {
  const auto ends = run_ranks(3, [&](Transport& transport) {
    Reducer reducer(
        plan_of("none"), transport,
        {.launch_order = transport.rank() == 2 ? LaunchOrder::kAgreed : LaunchOrder::kPlan});
  });
  for (const RankEnd& end : ends) {
    EXPECT_TRUE(end.threw<InvalidArgument>());
    EXPECT_TRUE(contains(end.message, "rank 2's plan differs from rank 0's at line"));
    EXPECT_TRUE(contains(end.message, "'launch order: agreed' expected 'launch order: plan'"))
        << end.message;
  }
}

}  // namespace
}  // namespace gradwire::test
