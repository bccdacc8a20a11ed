// powersgd in plans and Reducers: whole matrices, sums in flight of the true length, and factors
// that stay with their parameters whatever buckets they are in.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "gradwire/comm/reducer.h"
#include "gradwire/comm/transport/in_process.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/wrapped_transport.h"

namespace gradwire::test {
namespace {

constexpr const char* kForms[] = {"powersgd:3", "powersgd:3,rounds=2"};
constexpr const char* kExchanges[] = {"dense",  "sum",      "ring", "rabenseifner",
                                      "gather", "two_shot", "gtopk"};

void steps(Reducer& reducer, int rank, int from, int to) {
  for (int step = from; step < to; ++step) {
    hand_over(reducer, gradients(rank, step));
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
  }
}

std::string saved(const Reducer& reducer) {
  std::ostringstream out;
  reducer.save(out);
  return out.str();
}

Reducer::OpenCheckpoint opens(const std::vector<std::string>& files) {
  return [&files](int rank) -> std::unique_ptr<std::istream> {
    return static_cast<size_t>(rank) < files.size()
               ? std::make_unique<std::istringstream>(files[static_cast<size_t>(rank)])
               : nullptr;
  };
}

/// The means of all ranks must be rank 0's.
void expect_agreement(const std::vector<Outcome>& ranks) {
  for (const Outcome& rank : ranks) {
    EXPECT_TRUE(same_bits(rank.means, ranks[0].means));
  }
}

TEST(LowRankPlan, KnowsTheRowsOfMatrices) {
  const std::vector<ParamInfo> parameters{
      {"scale", {}}, {"bias", {6}}, {"weight", {6, 20}}, {"kernel", {8, 3, 5, 5}}};
  PlanOptions options;
  options.spec = parse_spec("powersgd:2");
  const Plan plan = make_plan(parameters, options);
  ASSERT_EQ(plan.buckets.size(), 1u);
  ASSERT_EQ(plan.buckets[0].groups.size(), 1u) << "1-D parameters lie in the payload";
  EXPECT_EQ(plan.buckets[0].exchange, "dense");
  std::map<ParamId, size_t> rows;
  for (const Segment& segment : plan.buckets[0].groups[0].segments) {
    rows[segment.parameter] = segment.rows;
  }
  EXPECT_EQ(rows, (std::map<ParamId, size_t>{{0, 0}, {1, 0}, {2, 6}, {3, 8}}));
  // 2 * (6 + 20) < 120 and 2 * (8 + 75) < 600: the right factors are the larger ones.
  const auto compressor =
      make_compressor(options.spec, {.numel = 727, .segments = plan.buckets[0].groups[0].segments});
  EXPECT_EQ(compressor->capacity_bytes(), 32u + 4 * (7 + 2 * (20 + 75)));
  EXPECT_EQ(compressor->kept_bytes(), 4u * (2 * 190 + 28 + 190));

  options.exchange = "hierarchical";
  EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { make_plan(parameters, options); }),
                       "since nodes share out parts of matrices"));
}

TEST(LowRankReducer, LosesNothingOverAnyExchange) {
  for (const char* form : kForms) {
    SCOPED_TRACE(form);
    for (const char* exchange : kExchanges) {
      for (const int world_size : {1, 3, 4}) {
        SCOPED_TRACE(concat(exchange, ", ", world_size, " ranks"));
        const auto ranks = static_cast<size_t>(world_size);
        constexpr int kSteps = 5;
        std::vector<Outcome> ends(ranks);
        std::vector<Values> sums(kSteps);
        const auto outcome = run_ranks(world_size, [&](Transport& transport) {
          const int rank = transport.rank();
          Reducer reducer(plan_of(form, 16384, exchange), transport, {.streams = 2});
          for (int step = 0; step < kSteps; ++step) {
            steps(reducer, rank, step, step + 1);
            if (rank == 0) {
              sums[static_cast<size_t>(step)] = means(reducer);
            }
            for (const BucketTrace& bucket : reducer.trace().steps().back().buckets) {
              check(bucket.bytes_sent == bucket.predicted_bytes_sent, "sent ", bucket.bytes_sent,
                    " bytes, predicted ", bucket.predicted_bytes_sent);
            }
          }
          ends[static_cast<size_t>(rank)] = {means(reducer), residuals(reducer)};
        });
        ASSERT_EQ(first_message(outcome), "");
        expect_agreement(ends);
        std::vector<std::vector<double>> missing;  // given, but neither in a mean nor kept
        for (const ParamInfo& parameter : model()) {
          missing.emplace_back(parameter.numel());
        }
        const auto add = [&](const Values& values, double factor) {
          for (size_t p = 0; p < missing.size(); ++p) {
            for (size_t i = 0; i < missing[p].size(); ++i) {
              missing[p][i] += factor * values[p][i];
            }
          }
        };
        for (int step = 0; step < kSteps; ++step) {
          for (int rank = 0; rank < world_size; ++rank) {
            add(gradients(rank, step), 1);
          }
          add(sums[static_cast<size_t>(step)], -world_size);
        }
        for (const Outcome& end : ends) {
          for (size_t p = 0; p < missing.size(); ++p) {
            ASSERT_EQ(end.residuals[p].size(), missing[p].size());
          }
          add(end.residuals, -1);
        }
        for (const auto& of_parameter : missing) {
          for (const double left : of_parameter) {
            ASSERT_NEAR(left, 0, 2e-4);
          }
        }
      }
    }
  }
}

TEST(LowRankReducer, HasTheSameBitsOverTheExchangesOfRankOrder) {
  for (const char* form : kForms) {
    SCOPED_TRACE(form);
    std::vector<Outcome> of_dense;
    for (const char* exchange : {"dense", "sum", "gather", "two_shot"}) {
      SCOPED_TRACE(exchange);
      std::vector<Outcome> ends(3);
      const auto outcome = run_ranks(3, [&](Transport& transport) {
        Reducer reducer(plan_of(form, 16384, exchange), transport);
        steps(reducer, transport.rank(), 0, 4);
        ends[static_cast<size_t>(transport.rank())] = {means(reducer), residuals(reducer)};
      });
      ASSERT_EQ(first_message(outcome), "");
      of_dense = of_dense.empty() ? ends : of_dense;
      EXPECT_TRUE(ends == of_dense);
    }
  }
}

TEST(LowRankReducer, KeepsItsFactorsWhenBucketsChange) {
  for (const char* form : kForms) {
    SCOPED_TRACE(form);
    for (const char* exchange : {"dense", "sum"}) {
      SCOPED_TRACE(exchange);
      const auto outcome = run_ranks(2, [&](Transport& transport) {
        const int rank = transport.rank();
        Reducer still(plan_of(form, 16384, exchange), transport);
        std::vector<Outcome> expected;
        for (int step = 0; step < 8; ++step) {
          steps(still, rank, step, step + 1);
          expected.push_back({means(still), residuals(still)});
        }
        Reducer moved(plan_of(form, 16384, exchange), transport);
        int step = 0;
        for (const size_t bucket_bytes :
             {size_t{16384}, size_t{1} << 20, size_t{64}, size_t{30000}}) {
          moved.set_plan(plan_of(form, bucket_bytes, exchange));
          for (const int end = step + 2; step < end; ++step) {
            steps(moved, rank, step, step + 1);
            check(Outcome{means(moved), residuals(moved)} == expected[static_cast<size_t>(step)],
                  "other bits in step ", step, " at ", bucket_bytes);
          }
        }
      });
      EXPECT_EQ(first_message(outcome), "");
    }
  }
}

TEST(LowRankReducer, LoadsItsFactorsIntoAnotherPlan) {
  for (const char* form : kForms) {
    SCOPED_TRACE(form);
    std::vector<std::string> files(2);
    const auto outcome = run_ranks(2, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer saving(plan_of(form), transport);
      steps(saving, rank, 0, 5);
      files[static_cast<size_t>(rank)] = saved(saving);
      steps(saving, rank, 5, 8);
      Reducer loading(plan_of(form, 64), transport);
      loading.load(opens(files));
      steps(loading, rank, 5, 8);
      check(
          Outcome{means(loading), residuals(loading)} == Outcome{means(saving), residuals(saving)},
          "another result");
    });
    EXPECT_EQ(first_message(outcome), "");
  }
}

TEST(LowRankReducer, AgreesOnItsFactorsAtAnotherWorldSize) {
  for (const char* form : kForms) {
    SCOPED_TRACE(form);
    for (const auto& [before, after] : {std::pair(3, 2), std::pair(2, 3), std::pair(4, 1)}) {
      SCOPED_TRACE(concat(before, " to ", after, " ranks"));
      std::vector<std::string> files(static_cast<size_t>(before));
      auto outcome = run_ranks(before, [&](Transport& transport) {
        Reducer reducer(plan_of(form), transport);
        steps(reducer, transport.rank(), 0, 4);
        files[static_cast<size_t>(transport.rank())] = saved(reducer);
      });
      ASSERT_EQ(first_message(outcome), "");
      std::vector<Outcome> ends(static_cast<size_t>(after));
      outcome = run_ranks(after, [&](Transport& transport) {
        Reducer reducer(plan_of(form, 16384, "gather"), transport);
        reducer.load(opens(files));
        steps(reducer, transport.rank(), 4, 7);
        ends[static_cast<size_t>(transport.rank())] = {means(reducer), residuals(reducer)};
      });
      ASSERT_EQ(first_message(outcome), "");
      expect_agreement(ends);
    }
  }
}

// A rank that has not seen the last mean has no factors of it, so nobody's may be used: the next
// step is as one of ranks that begin. In step 4, whose side is that of step 0.
TEST(LowRankReducer, DrawsItsFactorsAnewWhereARankWasBehind) {
  for (const char* form : {"powersgd:3,noef", "powersgd:3,rounds=2,noef"}) {
    SCOPED_TRACE(form);
    const auto outcome = run_ranks(2, [&](Transport& together) {
      const int rank = together.rank();
      Reducer beginning(plan_of(form), together);
      steps(beginning, rank, 10, 11);
      const Values expected = means(beginning);
      const auto alone = make_in_process_group(1);
      Reducer reducer(plan_of(form), *alone[0]);
      steps(reducer, rank, 0, 4 - rank);
      check(reducer.rebuild(together).behind == (rank == 1), "behind");
      steps(reducer, rank, 10, 11);
      check(same_bits(means(reducer), expected), "goes on with factors that another rank lacks");
    });
    EXPECT_EQ(first_message(outcome), "");
  }
}

// Rank 1's gradient is not finite: nobody learns from the step, in either round.
TEST(LowRankReducer, LearnsNothingFromAStepThatIsSkipped) {
  for (const char* form : kForms) {
    for (const char* exchange : kExchanges) {
      for (const ParamId bad : {ParamId{0}, ParamId{2}}) {  // a matrix, and a bias
        SCOPED_TRACE(concat(form, " ", exchange, " ", bad));
        const auto outcome = run_ranks(3, [&](Transport& transport) {
          const int rank = transport.rank();
          const auto two_steps = [&](Reducer& reducer) {
            steps(reducer, rank, 0, 2);
            return Outcome{means(reducer), residuals(reducer)};
          };
          Reducer clean(plan_of(form, 16384, exchange), transport);
          const Outcome expected = two_steps(clean);
          Reducer met(plan_of(form, 16384, exchange), transport,
                      {.on_nonfinite = OnNonFinite::kSkip});
          Values values = gradients(rank, 7);
          values[bad][5] = rank == 1 ? std::nanf("") : 0.0f;
          hand_over(met, values);
          check(met.wait() == StepOutcome::kSkipped, "not skipped");
          check(two_steps(met) == expected, "learned from a skipped step");
        });
        EXPECT_EQ(first_message(outcome), "");
      }
    }
  }
}

TEST(LowRankReducer, OfTwoRoundsDecodesTheMeanOfAMatrixOfLowRankAtOnce) {
  std::vector<ParamInfo> parameters{{"weight", {60, 80}}, {"bias", {7}}};
  PlanOptions options;
  options.spec = parse_spec("powersgd:4,rounds=2");
  const Plan plan = make_plan(parameters, options);
  const auto outcome = run_ranks(3, [&](Transport& transport) {
    Reducer reducer(plan, transport);
    const auto weight = reducer.gradient(0).as<float>();
    const auto value = [](size_t rank, size_t i, size_t j) {
      return std::sin(static_cast<float>(i * (rank + 1))) * static_cast<float>(j % 9);
    };
    for (size_t i = 0; i < 60; ++i) {
      for (size_t j = 0; j < 80; ++j) {
        weight[i * 80 + j] = value(static_cast<size_t>(transport.rank()), i, j);
      }
    }
    std::ranges::fill(reducer.gradient(1).as<float>(), static_cast<float>(transport.rank()));
    reducer.grad_ready(1);
    reducer.grad_ready(0);
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    for (size_t i = 0; i < 60; ++i) {
      for (size_t j = 0; j < 80; ++j) {
        const float mean = (value(0, i, j) + value(1, i, j) + value(2, i, j)) / 3;
        check(std::abs(weight[i * 80 + j] - mean) < 1e-4f, "element ", i, ", ", j);
      }
    }
    check(reducer.gradient(1).as<float>()[3] == 1.0f, "bias");
  });
  EXPECT_EQ(first_message(outcome), "");
}

TEST(LowRankReducer, NamesTheRankOfABadFirstPayload) {
  constexpr size_t kVariantAt = offsetof(PayloadHeader, variant);
  for (const char* exchange : {"gather", "two_shot"}) {
    SCOPED_TRACE(exchange);
    PlanOptions options;
    options.spec = parse_spec("powersgd:4,rounds=2");
    options.exchange = exchange;
    const ParamInfo weight{"weight", {64, 64}};  // factors of one size
    const Plan plan = make_plan({&weight, 1}, options);
    std::vector<std::string> said(2);
    run_ranks(2, [&](Transport& transport) {
      bool done = false;
      WrappedTransport wrapped(transport, [&](Parts parts) {
        if (transport.rank() == 0 && !done && parts.part(1).size() > sizeof(PayloadHeader)) {
          done = true;
          parts.part(1)[kVariantAt] ^= std::byte{1};
        }
      });
      Reducer reducer(plan, wrapped);
      std::ranges::fill(reducer.gradient(0).as<float>(), 0.5f);
      reducer.grad_ready(0);
      said[static_cast<size_t>(transport.rank())] =
          message_of<TransportError>([&] { reducer.wait(); });
    });
    for (const std::string& words : said) {
      EXPECT_TRUE(contains(words, "rank 1's payload: ")) << words;
      EXPECT_TRUE(contains(words, "variant is 1, must be 0 in step 0")) << words;
    }
  }
}

TEST(LowRankReducer, RefusesToHandOnPayloads) {
  for (const char* form : kForms) {
    SCOPED_TRACE(form);
    const auto outcome = run_ranks(1, [&](Transport& transport) {
      Reducer reducer(plan_of(form), transport);
      check(contains(message_of<InvalidArgument>([&] { reducer.deliver(0, Delivery::kPayloads); }),
                     "learns from the mean"),
            "delivers payloads");
    });
    EXPECT_EQ(first_message(outcome), "");
  }
}

}  // namespace
}  // namespace gradwire::test
