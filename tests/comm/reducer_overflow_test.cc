// A step whose gradients are finite on every rank while their sum is not: no rank commits it, all
// say why, and what is kept is as if it had never been.

#include <gtest/gtest.h>

#include <sstream>

#include "gradwire/comm/reducer.h"
#include "tests/comm/exchange_case.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

struct Setting {
  std::string spec, exchange;
  int ranks;
  int ranks_per_node = 1;

  std::string text() const {
    return concat(spec, " ", exchange, " ", ranks, " ranks, ", ranks_per_node, " per node");
  }
  Plan plan() const {
    PlanOptions options;
    options.spec = parse_spec(spec);
    options.exempt_1d = PlanOptions::Exempt1D::kNever;
    options.bucket_bytes = 16384;
    options.exchange = exchange;
    options.seed = 3;
    options.ranks_per_node = ranks_per_node;
    return make_plan(model(), options);
  }
};

/// two.weight, a bucket of its own; 3e38 there on every rank.
constexpr ParamId kLargeParameter = 4;

/// What a rank ends up with.
struct Ending {
  Outcome outcome;
  std::string kept;  ///< its checkpoint behind the header: residuals, velocities, estimates, what
                     ///< was learned
  std::string message;
};

std::string kept_by(const Reducer& reducer) {
  std::ostringstream out;
  reducer.save(out);
  const std::string text = out.str();
  constexpr size_t kHeader = 64, kChecksum = 8;
  return text.substr(kHeader, text.size() - kHeader - kChecksum);
}

// Steps 0 and 1, then one that overflows unless it is left out, then step 2.
std::vector<Ending> run(const Setting& setting, bool with_overflow, OnNonFinite policy) {
  std::vector<Ending> endings(static_cast<size_t>(setting.ranks));
  const auto ends = run_ranks(setting.ranks, [&](Transport& transport) {
    Ending& ending = endings[static_cast<size_t>(transport.rank())];
    Reducer reducer(setting.plan(), transport, {.on_nonfinite = policy});
    for (const int step : {0, 1}) {
      hand_over(reducer, gradients(transport.rank(), step));
      check(reducer.wait() == StepOutcome::kCommitted, "step ", step, " was not committed");
    }
    if (with_overflow) {
      const std::string before = kept_by(reducer);
      Values large = gradients(transport.rank(), 7);
      std::ranges::fill(large[kLargeParameter], 3e38f);
      hand_over(reducer, large);
      ending.message = message_of<NonFiniteGradient>([&] {
        const StepOutcome outcome = reducer.wait();
        check(outcome == StepOutcome::kSkipped, "the step was committed");
      });
      check(reducer.committed_steps() == 2 && reducer.skipped_steps() == 1, "wrong counts");
      check(kept_by(reducer) == before, "what is kept has changed");
    }
    hand_over(reducer, gradients(transport.rank(), 2));
    check(reducer.wait() == StepOutcome::kCommitted, "the step behind it was not committed");
    ending.outcome = {means(reducer), residuals(reducer)};
    ending.kept = kept_by(reducer);
  });
  EXPECT_EQ(first_message(ends), "");
  return endings;
}

void expect_no_trace(const Setting& setting) {
  SCOPED_TRACE(setting.text());
  const auto clean = run(setting, false, OnNonFinite::kError);
  const auto raised = run(setting, true, OnNonFinite::kError);
  const auto skipped = run(setting, true, OnNonFinite::kSkip);
  const std::string bucket =
      concat("bucket ", setting.plan().places[kLargeParameter].bucket, " (", setting.exchange);
  for (size_t r = 0; r < clean.size(); ++r) {
    EXPECT_TRUE(contains(raised[r].message, bucket)) << raised[r].message;
    // Factors are sums over a row, which overflow on each rank already.
    const bool own = find_compressor(parse_spec(setting.spec).name).low_rank();
    EXPECT_TRUE(contains(raised[r].message,
                         own ? "step 2: rank 0's gradient holds NaN or infinity, or overflows"
                             : "step 2: the sum of the ranks' finite gradients overflows float32"))
        << raised[r].message;
    EXPECT_EQ(skipped[r].message, "");
    for (const auto& other : {raised[r], skipped[r]}) {
      EXPECT_TRUE(other.outcome == clean[r].outcome) << "the step behind it differs on rank " << r;
      EXPECT_TRUE(other.kept == clean[r].kept) << "what rank " << r << " keeps differs";
    }
  }
}

bool carried(std::string_view exchange, const std::string& spec) {
  const ExchangeRow& row = find_exchange(exchange);
  const auto compressor =
      make_compressor(parse_spec(spec), {.numel = 6600, .segments = {{.numel = 6600, .rows = 33}}});
  return row.accepts(*compressor);
}

std::vector<std::string> specs() {
  std::vector<std::string> specs{"int4",
                                 "2bit",
                                 "e5m2",
                                 "ternary",
                                 "qsgd:7",
                                 "topk:5%,int4",
                                 "int8,noef",
                                 "bf16,ef",
                                 "int8,momentum=0.8",
                                 "topk:5%,ef21",
                                 "powersgd:2,rounds=2"};
  for (const CompressorRow& row : compressor_registry()) {
    const CompressorSpec spec = parse_spec(row.example);
    // Clipped gradients are small, and float16 saturates.
    if (spec.feedback.clip == 0 && spec.codec.values != ValueCodec::kFloat16) {
      specs.emplace_back(row.selector() && row.shared_choice() ? "randomk:50%" : row.example);
    }
  }
  specs.push_back("dgc:5%");
  return specs;
}

class AStepWhoseSumOverflows : public testing::TestWithParam<size_t> {};

TEST_P(AStepWhoseSumOverflows, LeavesNoTraceOnAnyRank) {
  const std::string exchange(exchange_registry()[GetParam()].name);
  size_t tried = 0;
  for (const std::string& spec : specs()) {
    if (!carried(exchange, spec)) {
      continue;
    }
    ++tried;
    if (exchange == "hierarchical") {
      for (const auto& [ranks, per_node] : {std::pair(2, 1), {2, 2}, {3, 3}, {4, 2}}) {
        expect_no_trace({spec, exchange, ranks, per_node});
      }
    } else {
      for (const int ranks : {2, 3}) {
        expect_no_trace({spec, exchange, ranks});
      }
    }
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GE(tried, 3u);
}

INSTANTIATE_TEST_SUITE_P(Rows, AStepWhoseSumOverflows,
                         testing::Range<size_t>(0, exchange_registry().size()),
                         [](const auto& tested) {
                           return std::string(exchange_registry()[tested.param].name);
                         });

// The gradient is finite, its sum with the residual is not: that is this rank's doing, and said so.
TEST(AStepWhoseResidualOverflows, NamesTheRankAndItsResidual) {
  std::vector<std::string> messages(2);
  const auto ends = run_ranks(2, [&](Transport& transport) {
    PlanOptions options;
    options.spec = parse_spec("topk:1%");
    options.exchange = "gather";
    const std::vector<ParamInfo> parameters{{"w", {20, 20}}};
    Reducer reducer(make_plan(parameters, options), transport);
    for (int step = 0; step < 3; ++step) {
      const auto gradient = reducer.gradient(0).as<float>();
      std::ranges::fill(gradient, transport.rank() == 1 ? 1.7e38f : 1.0f);
      reducer.grad_ready(0);
      messages[static_cast<size_t>(transport.rank())] =
          message_of<NonFiniteGradient>([&] { reducer.wait(); });
    }
    check(reducer.committed_steps() == 2, "committed ", reducer.committed_steps(), " steps");
  });
  EXPECT_EQ(first_message(ends), "");
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message,
                         "rank 1's gradient holds NaN or infinity, or overflows float32 "
                         "with its residual"))
        << message;
  }
}

// Nobody decodes payloads that are handed on, and still they are looked at before the commit.
TEST(PayloadsWhoseSumOverflows, AreNotHandedOn) {
  for (const char* spec : {"int8", "topk:5%", "none", "1bit", "randomk:50%,int8"}) {
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const Setting setting{spec, "gather", 2};
      Reducer reducer(setting.plan(), transport, {.on_nonfinite = OnNonFinite::kSkip});
      for (BucketId b = 0; b < reducer.plan().buckets.size(); ++b) {
        reducer.deliver(b, Delivery::kPayloads);
      }
      hand_over(reducer, gradients(transport.rank(), 0));
      check(reducer.wait() == StepOutcome::kCommitted, "a step was not committed");
      const Values before = residuals(reducer);
      Values large = gradients(transport.rank(), 1);
      std::ranges::fill(large[kLargeParameter], 3e38f);
      hand_over(reducer, large);
      check(reducer.wait() == StepOutcome::kSkipped, "the step was committed");
      check(same_bits(residuals(reducer), before), "the residuals have changed");
    });
    EXPECT_EQ(first_message(ends), "") << spec;
  }
}

}  // namespace
}  // namespace gradwire::test
