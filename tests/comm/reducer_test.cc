// Means, order, residuals and plans of a Reducer whose ranks all behave.

#include "gradwire/comm/reducer.h"

#include <gtest/gtest.h>

#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

constexpr const char* kSpecs[] = {"none", "fp16", "int8", "int4,stochastic", "topk:5%,int4"};

// Steps over the model; ranks may hand gradients over in their own orders.
std::vector<Outcome> run_steps(int world_size, const std::string& spec, int steps,
                               const std::function<std::vector<ParamId>(int, int)>& order,
                               int streams = 1) {
  std::vector<Outcome> outcomes(static_cast<size_t>(world_size));
  const auto ends = run_ranks(world_size, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_of(spec), transport, {.threads = streams, .streams = streams});
    for (int step = 0; step < steps; ++step) {
      hand_over(reducer, gradients(rank, step), order(rank, step));
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    }
    outcomes[static_cast<size_t>(rank)] = {means(reducer), residuals(reducer)};
  });
  EXPECT_EQ(first_message(ends), "") << spec;
  return outcomes;
}

TEST(Reducer, WithoutCompressionGivesTheSerialMean) {
  const auto outcomes = run_steps(3, "none", 2, [](int, int) { return backward_order(); });
  const Values parts[] = {gradients(0, 1), gradients(1, 1), gradients(2, 1)};
  for (size_t p = 0; p < model().size(); ++p) {
    for (size_t i = 0; i < parts[0][p].size(); ++i) {
      const float sum = parts[0][p][i] + parts[1][p][i] + parts[2][p][i];
      ASSERT_EQ(outcomes[1].means[p][i], sum * (1.0f / 3.0f)) << p << " " << i;
    }
  }
  EXPECT_TRUE(outcomes[0].residuals[0].empty());
}

TEST(Reducer, GivesTheSameBitsOnEveryRankInWhateverOrderGradientsAppear) {
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const auto ordered = run_steps(3, spec, 3, [](int, int) { return backward_order(); });
    for (const int streams : {1, 2, 4}) {
      const auto seed = static_cast<unsigned>(streams);
      const auto order = [&](int rank, int step) {
        return random_order(seed + 10 * static_cast<unsigned>(3 * rank + step));
      };
      const auto shuffled = run_steps(3, spec, 3, order, streams);
      for (size_t r = 0; r < 3; ++r) {
        EXPECT_TRUE(shuffled[r] == ordered[r]) << "rank " << r << " seed " << seed;
        EXPECT_TRUE(same_bits(shuffled[r].means, ordered[0].means));
      }
    }
  }
}

TEST(Reducer, LosesNothingOverFiftySteps) {
  constexpr int kSteps = 50, kRanks = 3;
  for (const char* spec : {"int4", "int8,stochastic", "topk:2%", "topk:2%,int4", "fp16,ef"}) {
    SCOPED_TRACE(spec);
    std::vector<std::vector<double>> sent(kRanks), given(kRanks);
    const auto ends = run_ranks(kRanks, [&](Transport& transport) {
      const auto r = static_cast<size_t>(transport.rank());
      PlanOptions options;
      options.spec = parse_spec(spec);
      options.bucket_bytes = 16384;
      options.exempt_1d = PlanOptions::Exempt1D::kNever;
      Reducer reducer(make_plan(model(), options), transport);
      const auto add = [](std::vector<double>& sums, const Values& values, double weight) {
        size_t at = 0;
        for (const auto& of_parameter : values) {
          sums.resize(std::max(sums.size(), at + of_parameter.size()), 0.0);
          for (const float value : of_parameter) {
            sums[at++] += weight * value;
          }
        }
      };
      for (int step = 0; step < kSteps; ++step) {
        const Values mine = gradients(transport.rank(), step);
        add(given[r], mine, 1.0 / kRanks);
        hand_over(reducer, mine);
        reducer.wait();
        add(sent[r], means(reducer), r == 0 ? 1.0 : 0.0);
      }
      add(sent[r], residuals(reducer), 1.0 / kRanks);
    });
    ASSERT_EQ(first_message(ends), "");
    for (size_t i = 0; i < sent[0].size(); ++i) {
      const double left = sent[0][i] + sent[1][i] + sent[2][i];
      const double right = given[0][i] + given[1][i] + given[2][i];
      ASSERT_NEAR(left, right, 1e-4) << "element " << i;  // 50 float32 roundings of values below 10
    }
  }
}

TEST(Reducer, RoundsAnewInEachCommittedStep) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    Reducer reducer(plan_of("int4,stochastic,noef"), transport);
    const Values mine = gradients(transport.rank(), 0);
    hand_over(reducer, mine);
    reducer.wait();
    const Values first = means(reducer);
    hand_over(reducer, mine);
    reducer.wait();
    check(!same_bits(first, means(reducer)), "two steps drew the same random numbers");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(Reducer, WorksAloneAndSendsNothing) {
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const auto ends = run_ranks(1, [&](Transport& transport) {
      Reducer reducer(plan_of(spec), transport);
      for (int step = 0; step < 2; ++step) {
        hand_over(reducer, gradients(0, step));
        check(reducer.wait() == StepOutcome::kCommitted, "not committed");
        check(reducer.trace().last().bytes_sent() == 0, "bytes were sent");
      }
      check(spec != std::string("none") || same_bits(means(reducer), gradients(0, 1)),
            "the mean of one rank is not its gradient");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(Reducer, TakesWholeBucketsFromTheCallersMemory) {
  for (const char* spec : {"none", "int8"}) {
    SCOPED_TRACE(spec);
    const auto expected = run_steps(2, spec, 1, [](int, int) { return backward_order(); });
    const auto ends = run_ranks(2, [&](Transport& transport) {
      const Plan plan = plan_of(spec);
      Reducer reducer(plan, transport);
      const Values mine = gradients(transport.rank(), 0);
      std::vector<std::vector<float>> buckets;
      for (const PlanBucket& bucket : plan.buckets) {
        buckets.emplace_back(bucket.numel);
      }
      for (size_t p = 0; p < mine.size(); ++p) {
        const auto [bucket, offset] = plan.places[p];
        std::copy(mine[p].begin(), mine[p].end(),
                  buckets[bucket].begin() + static_cast<std::ptrdiff_t>(offset));
      }
      for (BucketId b = 0; b < plan.buckets.size(); ++b) {
        const Ticket ticket = reducer.bucket_ready(b, view_of(std::span(buckets[b])));
        check(ticket.bucket == b && ticket.step == 0, "ticket ", ticket.bucket);
      }
      reducer.wait();
      for (size_t p = 0; p < mine.size(); ++p) {
        const auto [bucket, offset] = plan.places[p];
        check(std::memcmp(buckets[bucket].data() + offset, expected[0].means[p].data(),
                          mine[p].size() * sizeof(float)) == 0,
              "parameter ", p, " differs");
      }
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

// Decoded by the caller, payloads are the mean that others get; the choice is each rank's own.
TEST(Reducer, HandsOnPayloadsInsteadOfMeansWhereAsked) {
  for (const char* spec : {"none", "int8", "topk:5%,int4"}) {
    SCOPED_TRACE(spec);
    const auto expected = run_steps(3, spec, 3, [](int, int) { return backward_order(); });
    const auto ends = run_ranks(3, [&](Transport& transport) {
      Reducer reducer(plan_of(spec), transport, {.streams = 2});
      for (int step = 0; step < 3; ++step) {
        for (BucketId b = 0; b < reducer.plan().buckets.size(); ++b) {
          reducer.deliver(b, step > 0 && transport.rank() != 1 ? Delivery::kPayloads
                                                               : Delivery::kMean);
        }
        hand_over(reducer, gradients(transport.rank(), step));
        reducer.wait();
      }
      const Outcome& alike = expected[static_cast<size_t>(transport.rank())];
      check(same_bits(residuals(reducer), alike.residuals), "residuals differ");
      const std::string none =
          message_of<InvalidArgument>([&] { static_cast<void>(reducer.take_payloads(99)); });
      check(contains(none, "bucket 99 is not in the plan"), none);
      if (transport.rank() == 1) {
        check(same_bits(means(reducer), expected[1].means), "means differ");
        const std::string mean =
            message_of<InvalidArgument>([&] { static_cast<void>(reducer.take_payloads(0)); });
        check(contains(mean, "take_payloads: bucket 0 has no payloads"), mean);
        return;
      }
      const auto stream = make_inline_stream();
      Workspace workspace;
      Context context{*stream, workspace};
      Values decoded = gradients(0, 0);
      for (BucketId b = 0; b < reducer.plan().buckets.size(); ++b) {
        for (const GroupPayloads& group : reducer.take_payloads(b)) {
          std::vector<float> mean(group.group->numel, -1.0f);
          group.compressor->decompress(group.result.parts, group.result.scale,
                                       view_of(std::span(mean)), context);
          stream->wait();
          size_t at = 0;
          for (const Segment& segment : group.group->segments) {
            std::copy_n(mean.begin() + static_cast<std::ptrdiff_t>(at), segment.numel,
                        decoded[segment.parameter].begin());
            at += segment.numel;
          }
        }
      }
      check(same_bits(decoded, expected[0].means), "decoded payloads differ");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(Reducer, CarriesResidualsIntoANewPlan) {
  for (const char* spec : {"int8", "topk:5%,int4"}) {
    SCOPED_TRACE(spec);
    const auto ends = run_ranks(2, [&](Transport& transport) {
      Reducer reducer(plan_of(spec), transport);
      for (int step = 0; step < 3; ++step) {
        hand_over(reducer, gradients(transport.rank(), step));
        reducer.wait();
      }
      const Values before = residuals(reducer);
      for (const size_t bucket_bytes : {1u << 20, 64u, 30000u}) {
        reducer.set_plan(plan_of(spec, bucket_bytes));
        check(same_bits(residuals(reducer), before), "residuals changed at ", bucket_bytes);
      }
      check(reducer.committed_steps() == 3, "committed steps changed");
      hand_over(reducer, gradients(transport.rank(), 3));
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(Reducer, SendsTheResidualWhenANewPlanHasNoFeedback) {
  std::vector<Values> kept(2);
  Values mean;
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan_of("topk:5%"), transport);
    hand_over(reducer, gradients(transport.rank(), 0));
    reducer.wait();
    kept[static_cast<size_t>(transport.rank())] = residuals(reducer);
    reducer.set_plan(plan_of("none"));
    reducer.set_plan(plan_of("none", 4096));  // still waiting to be sent
    hand_over(reducer, gradients(transport.rank(), 1));
    reducer.wait();
    const Values first = means(reducer);
    hand_over(reducer, gradients(transport.rank(), 1));
    reducer.wait();
    check(!same_bits(first, means(reducer)), "the residual was sent twice or never");
    if (transport.rank() == 0) {
      mean = first;
    }
  });
  ASSERT_EQ(first_message(ends), "");
  const Values a = gradients(0, 1), b = gradients(1, 1);
  for (size_t p = 0; p < a.size(); ++p) {
    for (size_t i = 0; i < a[p].size(); ++i) {
      const double pending = kept[0][p].empty() ? 0.0 : double{kept[0][p][i]} + kept[1][p][i];
      ASSERT_NEAR(mean[p][i], (double{a[p][i]} + b[p][i] + pending) / 2, 1e-5);
    }
  }
}

TEST(Reducer, RefusesANewPlanInTheMiddleOfAStepOrForOtherParameters) {
  const auto ends = run_ranks(1, [&](Transport& transport) {
    Reducer reducer(plan_of("int8"), transport);
    auto others = model();
    others[2].shape = {34};
    PlanOptions options;
    const std::string other =
        message_of<InvalidArgument>([&] { reducer.set_plan(make_plan(others, options)); });
    check(contains(other, "parameters or dtype differ"), other);
    reducer.grad_ready(4);
    const std::string middle =
        message_of<InvalidArgument>([&] { reducer.set_plan(plan_of("int8", 64)); });
    check(contains(middle, "step 0 has begun"), middle);
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
