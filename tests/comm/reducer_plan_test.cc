// Plans that follow from what the steps before them have shown.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

// So far apart that the order is certain; the times are not looked at.
void hand_over_slowly(Reducer& reducer, const Values& values, const std::vector<ParamId>& order) {
  for (const ParamId p : order) {
    write_gradient(reducer, p, values);
    reducer.grad_ready(p);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::vector<ParamId> leaving_order(const Plan& plan) {
  std::vector<ParamId> order;
  for (const PlanBucket& bucket : plan.buckets) {
    for (const PlanGroup& group : bucket.groups) {
      for (const Segment& segment : group.segments) {
        order.push_back(segment.parameter);
      }
    }
  }
  return order;
}

PlanOptions options_of(const std::string& spec) {
  PlanOptions options;
  options.spec = parse_spec(spec);
  options.exempt_1d = PlanOptions::Exempt1D::kNever;
  options.seed = 3;
  options.exchange = default_exchange(options.spec);
  return options;
}

TEST(ReducerReplan, FollowsTheOrderOfRankZeroOnEveryRankAndLosesNothing) {
  for (const char* spec : {"none", "topk:5%,int4"}) {
    std::vector<Values> replanned(3);
    const PlanOptions options = options_of(spec);
    const auto orders = [](int rank) { return random_order(static_cast<unsigned>(rank + 1)); };
    auto ends = run_ranks(3, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer reducer(make_plan(model(), options), transport, {.streams = 2});
      for (int step = 0; step < 2; ++step) {
        hand_over_slowly(reducer, gradients(rank, step), orders(rank));
        reducer.wait();
      }
      const Values kept = residuals(reducer);
      check(reducer.gradient_timings().size() == model().size(), "timings");
      reducer.replan({.plan = options, .link = {0, 1e-9}});
      check(leaving_order(reducer.plan()) == orders(0), "another order than rank 0's");
      check(reducer.plan().buckets.size() == model().size(), "merged without start-ups");
      check(same_bits(residuals(reducer), kept), "residuals changed");
      check(reducer.gradient_timings().empty(), "timings of another plan");
      hand_over(reducer, gradients(rank, 2));
      reducer.wait();
      replanned[static_cast<size_t>(rank)] = means(reducer);
      reducer.replan({.plan = options, .link = {100, 1e-9}});
      check(reducer.plan().buckets.size() == 1, "not merged for start-ups");
    });
    EXPECT_EQ(first_message(ends), "") << spec;
    // The same by hand.
    ends = run_ranks(3, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer reducer(make_plan(model(), options), transport);
      for (int step = 0; step < 2; ++step) {
        hand_over(reducer, gradients(rank, step));
        reducer.wait();
      }
      PlanOptions by_hand = options;
      for (const ParamId p : orders(0)) {
        by_hand.buckets.push_back({p});
      }
      reducer.set_plan(make_plan(model(), by_hand));
      hand_over(reducer, gradients(rank, 2));
      reducer.wait();
      check(same_bits(means(reducer), replanned[static_cast<size_t>(rank)]), "means differ");
    });
    EXPECT_EQ(first_message(ends), "") << spec;
  }
}

TEST(ReducerReplan, WhatOneRankRefusesAllRefuseAndTheJobGoesOn) {
  constexpr LinkCosts kLink{1e-5, 1e-9};
  ReplanOptions fine{.plan = options_of("topk:5%"), .link = kLink};
  fine.plan.exchange = "auto";
  const auto changed = [&](auto change) {
    ReplanOptions options = fine;
    change(options);
    return options;
  };
  struct Case {
    const char* what;
    ReplanOptions of_rank_0, of_rank_1;
    const char* said;
  };
  const ReplanOptions no_nodes = changed([](auto& o) { o.plan.ranks_per_node = 0; });
  const ReplanOptions too_fast = changed([](auto& o) { o.link.beta_s_per_byte = 1e-320; });
  const ReplanOptions no_link = changed([](auto& o) { o.link = {}; });
  const ReplanOptions stranger = changed([](auto& o) { o.timings = {{99, 0.0, 4}}; });
  const Case cases[] = {{"both refuse", no_nodes, no_nodes, "ranks_per_node is 0"},
                        {"the first refuses", no_nodes, fine, "ranks_per_node is 0"},
                        {"the other refuses", fine, no_nodes, "ranks_per_node is 0"},
                        {"a time of no parameter", stranger, fine, "timing is of parameter 99"},
                        {"an infinite rate", too_fast, too_fast, "rate is inf"},
                        {"a link of the other", no_link, fine, "chosen by link costs"},
                        {"a link of the first", fine, no_link, "chosen by link costs"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer reducer(plan_of("int8"), transport);
      hand_over(reducer, gradients(rank, 0));
      reducer.wait();
      const Values kept = residuals(reducer);
      const std::string said = message_of<InvalidArgument>(
          [&] { reducer.replan(rank == 0 ? c.of_rank_0 : c.of_rank_1); });
      check(contains(said, c.said), "'", said, "'");
      check(same_bits(residuals(reducer), kept), "residuals changed");
      hand_over(reducer, gradients(rank, 1));
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
      reducer.replan(fine);
      hand_over(reducer, gradients(rank, 2));
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerReplan, KeepsBucketsBelowTheirLargestSizeAndNeededOnesFirst) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    const PlanOptions options = options_of("none");
    Reducer reducer(make_plan(model(), options), transport);
    hand_over_slowly(reducer, gradients(transport.rank(), 0), backward_order());
    reducer.wait();
    reducer.replan({.plan = options, .link = {100, 1e-9}, .most_bytes = 34000});
    for (const PlanBucket& bucket : reducer.plan().buckets) {
      check(bucket.numel * sizeof(float) <= 34000, bucket.numel, " elements");
    }
    hand_over_slowly(reducer, gradients(transport.rank(), 1), backward_order());
    reducer.wait();
    // The first bucket's exchange outlasts backward: all others wait for it, the first layers win.
    reducer.replan({.plan = options,
                    .link = {100, 1e-9},
                    .most_bytes = 34000,
                    .order = LeavingOrder::kNeeded});
    const auto order = leaving_order(reducer.plan());
    check(order.front() == 7 && reducer.plan().buckets.size() > 2, "first ", order.front());
    check(reducer.plan().places[0].bucket == 1, "parameter 0 leaves as bucket ",
          reducer.plan().places[0].bucket);
    hand_over(reducer, gradients(transport.rank(), 2));
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerReplan, NeedsAStepToMeasureAndNoneThatHasBegun) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    Reducer reducer(plan_of("none"), transport);
    const std::string early = message_of<InvalidArgument>([&] { reducer.replan({}); });
    check(early == "replan: 0 steps since the last plan, expected at least one to measure", early);
    reducer.grad_ready(0);
    const std::string begun = message_of<InvalidArgument>([&] { reducer.replan({}); });
    check(contains(begun, "replan: step 0 has begun"), begun);
    hand_over(reducer, gradients(transport.rank(), 0), {7, 6, 5, 4, 3, 2, 1});
    reducer.wait();
  });
  EXPECT_EQ(first_message(ends), "");
}

// Of three ranks, two_shot sends 4/3 of a payload where gather sends 2, in twice the start-ups;
// dense and gather alike. Rank 0's figures count.
TEST(ReducerReplan, ChoosesTheExchangeOfEachBucketByTheLineAsRankZeroSawIt) {
  for (const auto& [spec, narrow, slow] :
       {std::tuple("topk:5%", "two_shot", "gather"), std::tuple("none", "dense", "gather")}) {
    const auto ends = run_ranks(3, [&, spec = spec, narrow = narrow, slow = slow](Transport& t) {
      PlanOptions options = options_of(spec);
      options.exchange = "auto";
      Reducer reducer(make_plan(model(), options), t);
      const bool first = t.rank() == 0;
      for (const auto& [link, expected] : {std::pair(LinkCosts{0, first ? 1e-6 : 1e-3}, narrow),
                                           std::pair(LinkCosts{first ? 1 : 1e-9, 1e-9}, slow)}) {
        hand_over(reducer, gradients(t.rank(), 0));
        reducer.wait();
        reducer.replan({.plan = options, .link = link});
        for (const PlanBucket& bucket : reducer.plan().buckets) {
          if (bucket.numel > 1000) {  // else headers are what counts
            check(bucket.exchange == expected, bucket.exchange, ", expected ", expected);
          }
        }
      }
      hand_over(reducer, gradients(t.rank(), 1));
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    });
    EXPECT_EQ(first_message(ends), "") << spec;
  }
}

/// One matrix of 20 000 elements.
std::vector<ParamInfo> matrix() { return {{"weight", {200, 100}}}; }

double capacity_of(const std::string& spec) {
  return static_cast<double>(make_compressor(parse_spec(spec), {.numel = 20000})->capacity_bytes());
}

/// Every element of it in one step: `seed` decides which are the largest.
void step_of_matrix(Reducer& reducer, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::ranges::generate(reducer.gradient(0).as<float>(), [&] { return normal(generator); });
  reducer.grad_ready(0);
  check(reducer.wait() == StepOutcome::kCommitted, "not committed");
}

// Of three ranks the second shot of two_shot is as long as the first where all chose alike,
// else 1.25 times: alpha is such that this decides between it and gather.
TEST(ReducerReplan, CountsWhatTheSelectionsOfTheRanksHadInCommon) {
  PlanOptions options = options_of("topk:5%");
  options.exchange = "auto";
  const double bytes = capacity_of("topk:5%");
  const LinkCosts link{.alpha_s = (0.29 * bytes - 64) * 1e-8, .beta_s_per_byte = 1e-8};
  const auto ends = run_ranks(3, [&](Transport& transport) {
    const auto replanned = [&](Reducer& reducer, bool alike) {
      const auto rank = static_cast<unsigned>(transport.rank());
      for (unsigned step = 0; step < 2; ++step) {
        step_of_matrix(reducer, 10 * step + (alike ? 0 : rank));
      }
      reducer.replan({.plan = options, .link = link});
      return reducer.plan().buckets[0].exchange;
    };
    Reducer reducer(make_plan(matrix(), options), transport);
    check(replanned(reducer, true) == "two_shot", "all chose alike");
    check(replanned(reducer, false) == "gather", "each its own, as the means of two_shot show it");
    Reducer other(make_plan(matrix(), options), transport);
    check(replanned(other, false) == "gather", "each its own");
  });
  EXPECT_EQ(first_message(ends), "");
}

// By the formulas, of four ranks with x = B beta: latency alone, and alpha = x / 5.
TEST(ReducerReplan, TakesMeansThatAreOnlyTheSameOnAllRanksWhereThePlanAllowsThem) {
  struct Choice {
    const char* spec;
    double alpha_per_x;
    const char *in_rank_order, *any;
  };
  for (const Choice& choice :
       {Choice{"topk:5%", 100, "gather", "gtopk"}, Choice{"none", 100, "gather", "gtopk"},
        Choice{"none", 0.2, "dense", "rabenseifner"},
        Choice{"topk:5%", 0, "two_shot", "two_shot"}}) {
    SCOPED_TRACE(concat(choice.spec, " ", choice.alpha_per_x));
    const double x = capacity_of(choice.spec) * 1e-8;
    const auto ends = run_ranks(4, [&](Transport& transport) {
      PlanOptions options = options_of(choice.spec);
      options.exchange = "auto";
      Reducer reducer(make_plan(matrix(), options), transport);
      for (const bool any : {false, true}) {
        step_of_matrix(reducer, static_cast<unsigned>(transport.rank()));
        options.mean = any ? MeanBits::kSameOnAllRanks : MeanBits::kOfRankOrder;
        reducer.replan({.plan = options, .link = {choice.alpha_per_x * x, 1e-8}});
        const std::string& exchange = reducer.plan().buckets[0].exchange;
        check(exchange == (any ? choice.any : choice.in_rank_order), exchange, " with ",
              any ? "any mean" : "means of the rank-order sum");
      }
      step_of_matrix(reducer, 9);
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerReplan, AddsUpByNodeWhereThereAreSeveralAndTheirLinksAreKnown) {
  const auto ends = run_ranks(4, [](Transport& transport) {
    PlanOptions options = options_of("topk:5%");
    options.exchange = "auto";
    options.mean = MeanBits::kSameOnAllRanks;
    Reducer reducer(make_plan(matrix(), options), transport);
    const LinkCosts link{0, 1e-7}, fast{0, 1e-11};
    const auto replanned = [&](int per_node, LinkCosts node_link) {
      step_of_matrix(reducer, static_cast<unsigned>(transport.rank()));
      options.ranks_per_node = per_node;
      reducer.replan({.plan = options, .link = link, .node_link = node_link});
      return reducer.plan().buckets[0].exchange;
    };
    // A share's payload between two nodes, against 2.25 / 4 of the whole three times.
    check(replanned(2, fast) == "hierarchical", "two nodes");
    check(replanned(2, {}) == "two_shot", "nobody measured within a node");
    check(replanned(2, link) == "two_shot", "the links within a node are as slow");
    check(replanned(4, fast) == "two_shot", "one node");
    check(replanned(2, fast) == "hierarchical", "two nodes again");
    options.mean = MeanBits::kOfRankOrder;
    check(replanned(2, fast) == "two_shot", "not allowed");
    step_of_matrix(reducer, 3);
  });
  EXPECT_EQ(first_message(ends), "");
}

// Rank 1 never reaches parameter 2, rank 0 never parameter 5, which then leaves as late as the
// last.
TEST(ReducerReplan, TakesParametersThatRankZeroNeverReachedAsLate) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    const PlanOptions options = options_of("none");
    Reducer reducer(make_plan(model(), options), transport, {.unused = UnusedParameters::kZero});
    auto order = backward_order();
    std::erase(order, transport.rank() == 0 ? ParamId{5} : ParamId{2});
    hand_over_slowly(reducer, gradients(transport.rank(), 0), order);
    reducer.wait();
    check(reducer.gradient_timings().size() == model().size() - 1, "timings");
    reducer.replan({.plan = options, .link = {0, 1e-9}});
    const auto leaving = leaving_order(reducer.plan());
    check(leaving[6] == 5 && leaving[7] == 0, "5 is not late");
  });
  EXPECT_EQ(first_message(ends), "");
}

// Of one element a rank of a node compresses all and the other nothing. Both must ask each other for what
// earlier plans left, else their calls do not meet.
TEST(ReducerPlan, AScalarAloneGoesOnByNodeWithItsResidual) {
  const auto plan = [](const std::string& exchange) {
    return make_plan(std::vector<ParamInfo>{{"scalar", {}}},
                     {.spec = parse_spec("topk:100%,int4"),
                      .exchange = exchange,
                      .exempt_1d = PlanOptions::Exempt1D::kNever,
                      .ranks_per_node = exchange == "hierarchical" ? 2 : 1});
  };
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan("gather"), transport);
    double owed = 0;  // 2 * (gradients less means), of both ranks together
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        reducer.set_plan(plan("hierarchical"));
      }
      const auto place = reducer.gradient(0).as<float>();
      place[0] = transport.rank() == 0 ? 0.3f : 0.41f;
      owed += 0.3f + 0.41f;
      reducer.grad_ready(0);
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
      owed -= 2.0 * double{reducer.gradient(0).as<float>()[0]};
    }
    std::vector<float> mine{reducer.residual(0).empty() ? 0.0f : reducer.residual(0)[0]};
    Workspace workspace;
    const auto stream = make_cpu_stream();
    Context context{*stream, workspace};
    transport.all_reduce_sum(mine, {}, context);
    stream->wait();
    check(std::abs(mine[0] - owed) < 1e-6, "kept ", mine[0], ", expected ", owed);
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
