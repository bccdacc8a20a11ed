// Residuals kept in bfloat16: what a loop with a rounding of its own says of them, for every
// exchange, and what a step that commits nothing leaves. Residuals asked to lie on the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

Plan plan_with(const std::string& spec, const std::string& exchange, int ranks_per_node = 1) {
  PlanOptions options;
  options.spec = parse_spec(spec);
  options.exchange = exchange;
  options.bucket_bytes = 16384;
  options.exempt_1d = PlanOptions::Exempt1D::kNever;
  options.ranks_per_node = ranks_per_node;
  return make_plan(model(), options);
}

/// The float whose lower sixteen bits are zero that is nearest, the even one of two. Of finite
/// values.
float rounded(float x) {
  const uint64_t bits = std::bit_cast<uint32_t>(x), lower = bits & 0xffff;
  const bool up = lower > 0x8000 || (lower == 0x8000 && (bits >> 16) % 2 == 1);
  return std::bit_cast<float>(static_cast<uint32_t>((bits - lower) + (up ? 0x10000 : 0)));
}

bool is_narrow(const Values& values) {
  return std::ranges::all_of(values, [](const std::vector<float>& of_parameter) {
    return std::ranges::all_of(of_parameter,
                               [](float x) { return std::bit_cast<uint32_t>(x) % 0x10000 == 0; });
  });
}

// Of one rank the mean is what its payload says, so that a loop knows the residual to the bit.
TEST(ReducerBFloat16, KeepsWhatALoopKeepsBitForBit) {
  for (const char* text : {"topk:5%,residual=bf16", "int8,residual=bf16", "fp16,ef,residual=bf16",
                           "chunktopk:64/4096,residual=bf16,decay=0.5"}) {
    SCOPED_TRACE(text);
    const CompressorSpec spec = parse_spec(text);
    const auto ends = run_ranks(1, [&](Transport& transport) {
      Reducer reducer(plan_with(text, "gather"), transport, {.streams = 2});
      Values before = residuals(reducer);
      for (int step = 0; step < 6; ++step) {
        const Values g = gradients(0, step);
        hand_over(reducer, g);
        check(reducer.wait() == StepOutcome::kCommitted, "not committed");
        const Values mean = means(reducer), after = residuals(reducer);
        for (size_t p = 0; p < g.size(); ++p) {
          for (size_t i = 0; i < g[p].size(); ++i) {
            const float waited = static_cast<float>(spec.feedback.decay) * before[p][i];
            const float expected = rounded(g[p][i] + waited - mean[p][i]);
            check(after[p][i] == expected, "step ", step, ", element ", i, " of parameter ", p,
                  " is ", after[p][i], ", expected ", expected);
          }
        }
        before = after;
      }
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

struct Case {
  const char* spec;
  const char* exchange;
  int ranks_per_node = 1;
};

// sum of (g + e) == ranks * mean + sum of e_next before it was rounded: once behind compress(),
// once behind the exchange.
TEST(ReducerBFloat16, LosesNothingButARoundingOverEveryExchange) {
  constexpr int kRanks = 4;
  for (const Case& c :
       {Case{"topk:5%", "gather"}, Case{"topk:5%", "two_shot"}, Case{"topk:5%", "gtopk"},
        Case{"int4", "two_shot"}, Case{"int8,stochastic", "two_shot"}, Case{"bf16,ef", "dense"},
        Case{"randomk:5%", "sum"}, Case{"powersgd:2", "sum"}, Case{"powersgd:2,rounds=2", "dense"},
        Case{"powersgd:2,rounds=2", "sum"}, Case{"int4", "hierarchical", 2},
        Case{"topk:5%", "hierarchical", 2}}) {
    SCOPED_TRACE(concat(c.spec, " ", c.exchange));
    const std::string spec = concat(c.spec, ",residual=bf16");
    std::vector<std::vector<Values>> after(kRanks), mean(kRanks);
    const auto ends = run_ranks(kRanks, [&](Transport& transport) {
      const auto rank = static_cast<size_t>(transport.rank());
      Reducer reducer(plan_with(spec, c.exchange, c.ranks_per_node), transport, {.streams = 2});
      after[rank].push_back(residuals(reducer));
      for (int step = 0; step < 5; ++step) {
        hand_over(reducer, gradients(transport.rank(), step));
        check(reducer.wait() == StepOutcome::kCommitted, "not committed");
        mean[rank].push_back(means(reducer));
        after[rank].push_back(residuals(reducer));
      }
    });
    ASSERT_EQ(first_message(ends), "");
    for (size_t step = 0; step < 5; ++step) {
      Values g[kRanks];
      for (int r = 0; r < kRanks; ++r) {
        g[r] = gradients(r, static_cast<int>(step));
        ASSERT_TRUE(is_narrow(after[static_cast<size_t>(r)][step + 1]));
      }
      for (size_t p = 0; p < model().size(); ++p) {
        for (size_t i = 0; i < g[0][p].size(); ++i) {
          double had = 0, has = kRanks * double{mean[0][step][p][i]}, kept = 0, size = 0;
          for (size_t r = 0; r < kRanks; ++r) {
            const double e = after[r][step][p][i], e_next = after[r][step + 1][p][i];
            had += g[r][p][i] + e;
            has += e_next;
            kept += std::abs(e_next);
            size += std::abs(g[r][p][i]) + std::abs(e);
          }
          // What an exchange adds to may be larger than what is left of it.
          ASSERT_NEAR(has, had, 0x1p-8 * (kept + size) + 1e-5)
              << "step " << step << ", element " << i << " of parameter " << p;
        }
      }
    }
  }
}

TEST(ReducerBFloat16, AStepThatIsSkippedLeavesItsBits) {
  for (const Case& c :
       {Case{"topk:5%,residual=bf16", "two_shot"}, Case{"int4,residual=bf16", "hierarchical", 2},
        Case{"powersgd:2,rounds=2,residual=bf16", "dense"}}) {
    SCOPED_TRACE(concat(c.spec, " ", c.exchange));
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer reducer(plan_with(c.spec, c.exchange, c.ranks_per_node), transport,
                      {.on_nonfinite = OnNonFinite::kSkip});
      for (int step = 0; step < 3; ++step) {
        hand_over(reducer, gradients(rank, step));
        check(reducer.wait() == StepOutcome::kCommitted, "not committed");
      }
      const Values before = residuals(reducer);
      Values bad = gradients(rank, 3);
      bad[4][7] = rank == 1 ? std::numeric_limits<float>::quiet_NaN() : bad[4][7];
      hand_over(reducer, bad);
      check(reducer.wait() == StepOutcome::kSkipped, "not skipped");
      check(same_bits(residuals(reducer), before), "other residuals");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

// What waits is rounded where it is taken over, and then stays.
TEST(ReducerBFloat16, AChangedPlanTakesResidualsAlong) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan_with("topk:5%", "gather"), transport);
    hand_over(reducer, gradients(transport.rank(), 0));
    reducer.wait();
    const Values expected = changed(residuals(reducer), rounded);
    for (const char* spec : {"topk:5%,residual=bf16", "int8,residual=bf16", "topk:3%"}) {
      reducer.set_plan(plan_with(spec, "gather"));
      check(same_bits(residuals(reducer), expected), spec, ": other residuals");
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerBFloat16, SpecsAskForIt) {
  EXPECT_EQ(to_string(parse_spec("topk:1%,residual=bf16,int4,decay=0.5")),
            "topk:1%,int4,decay=0.5,residual=bf16");
  EXPECT_EQ(to_string(parse_spec("int8,residual=fp32")), "int8");
  const auto refusal = [](const char* spec) {
    return message_of<InvalidArgument>([&] { parse_spec(spec); });
  };
  EXPECT_EQ(refusal("topk:1%,residual=fp16"), "topk: residual is 'fp16', must be fp32 or bf16");
  EXPECT_EQ(refusal("bf16,residual=bf16"),
            "bf16: residual is bfloat16, must be float32 without error feedback: there is none");
  EXPECT_EQ(refusal("topk:1%,ef21,residual=bf16"),
            "topk: residual is bfloat16, must be float32 with ef21, whose estimate is the mean of "
            "what residuals say was sent");
}

TEST(ReducerBFloat16, ThePlanSaysHowMuchOfWhich) {
  PlanOptions options;
  options.spec = parse_spec("topk:5%,residual=bf16");
  options.rules = {{.spec = parse_spec("int8"), .name = "one.weight"}};  // 2112 elements
  options.exempt_1d = PlanOptions::Exempt1D::kNever;
  EXPECT_TRUE(
      contains(make_plan(model(), options).describe(),
               "residuals (two buffers) 16896 bytes of float32 and 67376 bytes of bfloat16"));
}

// On the CPU all memory is the host's: asking for it changes nothing but what the plan says.
TEST(ReducerResidualMemory, OfTheHostIsTheCpusOwn) {
  for (const char* spec : {"topk:5%", "int8,residual=bf16"}) {
    Plan plan = plan_with(spec, "two_shot");
    const auto outcome_of = [&](Transport& transport) {
      Reducer reducer(plan, transport);
      for (int step = 0; step < 3; ++step) {
        hand_over(reducer, gradients(transport.rank(), step));
        check(reducer.wait() == StepOutcome::kCommitted, "not committed");
      }
      return Outcome{means(reducer), residuals(reducer)};
    };
    std::vector<Outcome> expected(2);
    auto ends = run_ranks(2, [&](Transport& transport) {
      expected[static_cast<size_t>(transport.rank())] = outcome_of(transport);
    });
    ASSERT_EQ(first_message(ends), "");
    plan.residual_memory = ResidualMemory::kHost;
    ends = run_ranks(2, [&](Transport& transport) {
      check(outcome_of(transport) == expected[static_cast<size_t>(transport.rank())],
            "another outcome");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerResidualMemory, IsTheSameOnAllRanks) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Plan plan = plan_with("topk:5%", "gather");
    plan.residual_memory = transport.rank() == 1 ? ResidualMemory::kHost : ResidualMemory::kDevice;
    const std::string error =
        message_of<InvalidArgument>([&] { Reducer reducer(plan, transport); });
    check(contains(error, "rank 1's plan differs from rank 0's at line") &&
              contains(error, "residuals (two buffers in memory of the host)"),
          error);
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
