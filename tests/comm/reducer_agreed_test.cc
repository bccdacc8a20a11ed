// Buckets that leave as ranks agree on what is ready: the bits of the plan's order, over every
// transport, whatever the order in which gradients appear.

#include <gtest/gtest.h>

#include <barrier>
#include <sstream>

#include "gradwire/comm/reducer.h"
#include "gradwire/comm/transport/in_process.h"
#include "gradwire/comm/transport/point_to_point_transport.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/transport_ranks.h"

namespace gradwire::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kManyBuckets = 2048;  // bytes of a bucket: one for nearly every parameter
const ReducerOptions kAgreed{.launch_order = LaunchOrder::kAgreed};

ReducerOptions agreed(int streams, int threads = 1) {
  return {.threads = threads, .streams = streams, .launch_order = LaunchOrder::kAgreed};
}

/// Another one on every rank, in every step.
std::vector<ParamId> order_of(int rank, int step) {
  return random_order(static_cast<unsigned>(31 * step + rank + 1));
}

// Four steps over `kind`; in the plan's order gradients appear as backward has them.
std::vector<Outcome> run_steps(const std::string& kind, const Plan& plan,
                               const ReducerOptions& options) {
  std::vector<Outcome> outcomes(kRanks);
  const auto errors = transport_test::run_ranks(kind, kRanks, {}, [&](transport_test::Rank rank) {
    Reducer reducer(plan, rank.transport, options);
    for (int step = 0; step < 4; ++step) {
      const bool plans = options.launch_order == LaunchOrder::kPlan;
      hand_over(reducer, gradients(rank.rank, step),
                plans ? backward_order() : order_of(rank.rank, step));
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    }
    outcomes[static_cast<size_t>(rank.rank)] = {means(reducer), residuals(reducer)};
  });
  transport_test::expect_all_fine(errors);
  return outcomes;
}

void expect_same(const std::vector<Outcome>& found, const std::vector<Outcome>& expected) {
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_TRUE(found[r] == expected[r]) << "rank " << r;
    EXPECT_TRUE(same_bits(found[r].means, expected[0].means)) << "rank " << r;
  }
}

TEST(ReducerAgreed, GivesTheBitsOfThePlansOrderOverEveryTransport) {
  for (const char* spec : {"none", "bf16,ef", "topk:5%,int4"}) {
    const Plan plan = plan_of(spec, kManyBuckets);
    const auto expected = run_steps("in_process", plan, {});
    for (const std::string& kind : transport_test::kinds()) {
      if (!transport_test::unavailable(kind).empty()) {
        continue;  // said by the transports' own suite
      }
      for (const int streams : {1, 3}) {
        SCOPED_TRACE(concat(spec, " over ", kind, ", streams: ", streams));
        expect_same(run_steps(kind, plan, agreed(streams, streams)), expected);
      }
    }
  }
}

TEST(ReducerAgreed, GivesTheBitsOfThePlansOrderWithEveryKindOfState) {
  struct Case {
    const char* spec;
    const char* exchange;
  };
  for (const Case& c : {Case{"int8,stochastic", "gather"}, Case{"int4,stochastic", "two_shot"},
                        Case{"topk:5%,ef21", "gather"}, Case{"dgc:5%", "gather"},
                        Case{"topk:5%,int4,momentum=0.9", "gather"}, Case{"topk:5%", "gtopk"},
                        Case{"powersgd:2", "dense"}, Case{"powersgd:2,rounds=2", "dense"},
                        Case{"randomk:5%", "dense"}, Case{"none", "ring"}}) {
    const Plan plan = plan_of(c.spec, kManyBuckets, c.exchange);
    const auto expected = run_steps("in_process", plan, {});
    for (const int streams : {1, 2}) {
      SCOPED_TRACE(concat(c.spec, " ", c.exchange, ", streams: ", streams));
      expect_same(run_steps("in_process", plan, agreed(streams)), expected);
    }
  }
}

// Rank 0 reaches neither 4 nor 6, rank 1 not 6, rank 2 all but 6 and 2.
bool reaches(int rank, ParamId p) {
  return p != 6 && !(rank == 0 && p == 4) && !(rank == 2 && p == 2);
}

std::vector<Outcome> run_with_unused(const std::string& spec, const ReducerOptions& options,
                                     bool marks) {
  std::vector<Outcome> outcomes(kRanks);
  const auto ends = run_ranks(kRanks, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_of(spec, kManyBuckets), transport, options);
    for (int step = 0; step < 4; ++step) {
      const Values mine = gradients(rank, step);
      for (const ParamId p : order_of(rank, step)) {
        if (reaches(rank, p)) {
          write_gradient(reducer, p, mine);
          reducer.grad_ready(p);
        } else if (marks) {
          reducer.mark_unused(p);
        }
      }
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
      for (const ParamId p : forward_order()) {
        check(reducer.unused_everywhere(p) == (p == 6), "parameter ", p, " in step ", step);
      }
    }
    outcomes[static_cast<size_t>(rank)] = {means(reducer), residuals(reducer)};
  });
  EXPECT_EQ(first_message(ends), "") << spec;
  return outcomes;
}

TEST(ReducerAgreed, TakesWhatARankWillNotHaveAsZeros) {
  for (const char* spec : {"none", "topk:5%,int4"}) {
    const auto expected = run_with_unused(spec, {.unused = UnusedParameters::kZero}, true);
    for (const int streams : {1, 3}) {
      for (const bool marks : {true, false}) {
        SCOPED_TRACE(concat(spec, ", streams: ", streams, marks ? ", marked" : ""));
        ReducerOptions options = agreed(streams);
        options.unused = UnusedParameters::kZero;
        expect_same(run_with_unused(spec, options, marks), expected);
      }
    }
  }
}

std::string saved(const Reducer& reducer) {
  std::ostringstream out;
  reducer.save(out);
  return out.str();
}

TEST(ReducerAgreed, SavesTheBytesOfThePlansOrderAndGoesOnFromThem) {
  for (const char* spec : {"int8,stochastic", "topk:5%,int4", "powersgd:2"}) {
    SCOPED_TRACE(spec);
    const auto ends = run_ranks(kRanks, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer plans(plan_of(spec, kManyBuckets), transport);
      const auto lane = transport.split(0);
      Reducer agrees(plan_of(spec, kManyBuckets), *lane, kAgreed);
      const auto both = [&](int begin, int end) {
        for (int step = begin; step < end; ++step) {
          hand_over(plans, gradients(rank, step));
          plans.wait();
          hand_over(agrees, gradients(rank, step), order_of(rank, step));
          agrees.wait();
        }
      };
      both(0, 3);
      const std::string file = saved(plans);
      check(saved(agrees) == file, "other bytes");
      both(100, 102);  // another life
      agrees.load([&](int of) -> std::unique_ptr<std::istream> {
        check(of == rank, "asked for rank ", of);
        return std::make_unique<std::istringstream>(file);
      });
      plans.load([&](int) { return std::make_unique<std::istringstream>(file); });
      both(3, 6);
      check(saved(agrees) == saved(plans), "other bytes behind the checkpoint");
      agrees.set_plan(plan_of(spec, 1 << 20));  // another number of buckets
      plans.set_plan(plan_of(spec, 1 << 20));
      both(6, 8);
      check(saved(agrees) == saved(plans), "other bytes behind another plan");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

// Rank 2 leaves in the middle of step 1, and the others go on in the order that is asked for.
std::vector<Outcome> run_with_a_death(const ReducerOptions& options) {
  std::vector<Outcome> outcomes(2);
  auto engines = make_in_process_engines(kRanks);
  std::barrier first_step_over(kRanks);
  const auto ends = run_threads(kRanks, [&](int rank) {
    auto transport = make_point_to_point_transport(
        "in_process", std::move(engines[static_cast<size_t>(rank)]), {});
    std::unique_ptr<Transport> next;  // outlives the reducer
    Reducer reducer(plan_of("topk:5%,int4", kManyBuckets), *transport, options);
    hand_over(reducer, gradients(rank, 0), order_of(rank, 0));
    reducer.wait();
    first_step_over.arrive_and_wait();  // else a slower rank's first step could be hit
    if (rank == 2) {
      hand_over(reducer, gradients(rank, 1), {7, 6, 5});
      return;
    }
    const std::string message = message_of<TransportError>([&] {
      hand_over(reducer, gradients(rank, 1));
      reducer.wait();
    });
    check(contains(message, "rank 2's reducer ended in the middle of step 1"), "said: ", message);
    next = transport->rebuild();
    check(reducer.rebuild(*next).committed_steps == 1, "committed another number of steps");
    for (int step = 1; step < 4; ++step) {
      hand_over(reducer, gradients(rank, step), order_of(rank, step));
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    }
    outcomes[static_cast<size_t>(rank)] = {means(reducer), residuals(reducer)};
  });
  EXPECT_EQ(first_message(ends), "");
  return outcomes;
}

TEST(ReducerAgreed, GoesOnWithTheRanksThatAreLeft) {
  const auto expected = run_with_a_death({});
  const auto found = run_with_a_death(agreed(2));
  EXPECT_TRUE(found[0] == expected[0]);
  EXPECT_TRUE(found[1] == expected[1]);
}

}  // namespace
}  // namespace gradwire::test
