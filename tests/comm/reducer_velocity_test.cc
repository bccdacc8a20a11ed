// Velocities in the Reducer: whatever happens between steps, where everything is sent the means of
// two steps on end are those of momentum SGD, or of EF21-SGDM: mean' = kept mean + taken mean(g).

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "gradwire/comm/reducer.h"
#include "gradwire/comm/transport/in_process.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

Plan plan_with(const std::string& spec, const std::string& exchange, size_t bucket_bytes = 16384,
               int ranks_per_node = 1) {
  PlanOptions options;
  options.spec = parse_spec(spec);
  options.exchange = exchange;
  options.bucket_bytes = bucket_bytes;
  options.exempt_1d = PlanOptions::Exempt1D::kNever;
  options.ranks_per_node = ranks_per_node;
  return make_plan(model(), options);
}

struct Case {
  const char* spec;
  double kept, taken;
};
constexpr Case kCases[] = {{"none,ef,momentum=0.8", 0.8, 1}, {"none,ef21,eta=0.3", 0.7, 0.3}};

/// Runs a step and compares its mean with what the one before makes it.
void step_from(Reducer& reducer, Values& mean, const Case& c, int rank, int ranks, int step) {
  hand_over(reducer, gradients(rank, step));
  check(reducer.wait() == StepOutcome::kCommitted, "not committed");
  const Values next = means(reducer);
  std::vector<Values> parts;
  for (int r = 0; r < ranks; ++r) {
    parts.push_back(gradients(r, step));
  }
  for (size_t p = 0; p < next.size(); ++p) {
    for (size_t i = 0; i < next[p].size(); ++i) {
      double expected = mean.empty() ? 0 : c.kept * double{mean[p][i]};
      for (const Values& part : parts) {
        expected += c.taken * double{part[p][i]} / ranks;
      }
      check(std::abs(next[p][i] - expected) < 1e-5, "step ", step, ", element ", i,
            " of parameter ", p, " is ", next[p][i], ", expected ", expected);
    }
  }
  mean = next;
}

TEST(ReducerVelocity, AChangedPlanTakesItAlong) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.spec);
    const auto ends = run_ranks(3, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer reducer(plan_with(c.spec, "gather"), transport);
      Values mean;
      for (int step = 0; step < 9; ++step) {
        if (step % 3 == 2) {
          reducer.set_plan(plan_with(c.spec, step == 5 ? "dense" : "gather", 9000u << (step / 3)));
        }
        step_from(reducer, mean, c, rank, 3, step);
      }
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

// Shares of nodes: what another rank compresses from now on goes there through the gradient.
TEST(ReducerVelocity, GoesFromRanksToSharesOfNodesAndBack) {
  const auto ends = run_ranks(4, [&](Transport& transport) {
    const int rank = transport.rank();
    const Case& c = kCases[0];
    Reducer reducer(plan_with(c.spec, "dense"), transport);
    Values mean;
    for (int step = 0; step < 9; ++step) {
      if (step == 3) {
        reducer.set_plan(plan_with(c.spec, "hierarchical", 16384, 2));
      } else if (step == 6) {
        reducer.set_plan(plan_with(c.spec, "gather", 50000));
      }
      step_from(reducer, mean, c, rank, 4, step);
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

/// Of each step, what a rank keeps and the mean: of one step over all ranks and three without a
/// gradient in a node of both, the plan changed once or twice.
struct Steps {
  std::vector<Values> kept, means;
};
Steps move_into_a_node(const char* spec, bool twice, Transport& transport) {
  Steps steps;
  Reducer reducer(plan_with(spec, "gather"), transport);
  for (int step = 0; step < 4; ++step) {
    Values values = gradients(transport.rank(), 0);
    for (auto& of_parameter : values) {
      std::ranges::for_each(of_parameter, [&](float& x) { x = step == 0 ? x : 0.0f; });
    }
    hand_over(reducer, values);
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    steps.means.push_back(means(reducer));
    steps.kept.emplace_back();
    for (ParamId p = 0; p < values.size(); ++p) {
      const ConstResidual residual = reducer.residual(p);
      steps.kept.back().emplace_back(residual.begin(), residual.end());
    }
    for (int change = 0; step == 0 && change < (twice ? 2 : 1); ++change) {
      reducer.set_plan(plan_with(spec, "hierarchical", change == 0 ? 16384 : 9000, 2));
    }
  }
  return steps;
}

// Residuals reach the rank whose share they are as residuals, once, while velocities go on. Where a
// selector sends float32, the first step leaves the same in both.
TEST(ReducerVelocity, ResidualsReachTheirSharesWithoutTheMomentum) {
  const std::pair<const char*, bool> rows[] = {{"1bit,momentum=0.9", false},
                                               {"int4,momentum=0.9", false},
                                               {"topk:10%,momentum=0.9", true},
                                               {"dgc:10%", true}};
  const Values given[] = {gradients(0, 0), gradients(1, 0)};
  for (const auto& [spec, selects] : rows) {
    for (const bool twice : {false, true}) {
      SCOPED_TRACE(concat(spec, twice ? ", two changes on end" : ""));
      Steps ran[2];
      const auto ends = run_ranks(2, [&](Transport& transport) {
        ran[transport.rank()] = move_into_a_node(spec, twice, transport);
      });
      ASSERT_EQ(first_message(ends), "");
      for (size_t p = 0; p < given[0].size(); ++p) {
        for (size_t i = 0; i < given[0][p].size(); ++i) {
          const auto waits = [&](size_t step) {
            return ran[0].kept[step][p][i] + ran[1].kept[step][p][i];
          };
          double velocity = selects ? waits(0) : given[0][p][i] + given[1][p][i];
          for (size_t step = 1; step < 4; ++step) {
            velocity *= 0.9;
            const float mean = ran[0].means[step][p][i];
            ASSERT_NEAR(waits(step - 1) + velocity, 2 * mean + waits(step), 1e-4)
                << "step " << step << ", element " << i << " of parameter " << p;
            velocity = selects && mean != 0 ? 0 : velocity;
          }
        }
      }
    }
  }
}

TEST(ReducerVelocity, AnAverageThatBeginsInTheMiddleBeginsAtWhatWasSent) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan_with("none,ef21", "gather"), transport);
    Values mean;
    step_from(reducer, mean, {"", 0, 1}, transport.rank(), 2, 0);
    reducer.set_plan(plan_with("none,ef21,eta=0.3", "gather"));
    step_from(reducer, mean, {"", 0.7, 0.3}, transport.rank(), 2, 1);
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerVelocity, ACheckpointKeepsTheMeanOfAnotherNumberOfRanks) {
  for (const Case& c : kCases) {
    for (const auto& [before, after] :
         {std::pair(3, 3), std::pair(3, 2), std::pair(5, 2), std::pair(2, 5)}) {
      SCOPED_TRACE(concat(c.spec, ", ", before, " to ", after, " ranks"));
      std::vector<std::string> files(static_cast<size_t>(before));
      Values saved;
      auto ends = run_ranks(before, [&](Transport& transport) {
        const int rank = transport.rank();
        Reducer reducer(plan_with(c.spec, "gather"), transport);
        Values mean;
        for (int step = 0; step < 4; ++step) {
          step_from(reducer, mean, c, rank, before, step);
        }
        std::ostringstream out;
        reducer.save(out);
        files[static_cast<size_t>(rank)] = out.str();
        if (rank == 0) {
          saved = mean;
        }
      });
      ASSERT_EQ(first_message(ends), "");
      ends = run_ranks(after, [&](Transport& transport) {
        Reducer reducer(plan_with(c.spec, "gather", 50000), transport);  // other buckets, too
        reducer.load([&](int r) -> std::unique_ptr<std::istream> {
          const auto file = static_cast<size_t>(r);
          return file < files.size() ? std::make_unique<std::istringstream>(files[file]) : nullptr;
        });
        Values mean = saved;
        for (int step = 4; step < 7; ++step) {
          step_from(reducer, mean, c, transport.rank(), after, step);
        }
      });
      EXPECT_EQ(first_message(ends), "");
    }
  }
}

// Of two ranks, one of which never has a gradient and then goes.
TEST(ReducerVelocity, RebuildingKeepsTheMean) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.spec);
    const auto ends = run_ranks(2, [&](Transport& together) {
      const auto alone = make_in_process_group(1);
      Reducer reducer(plan_with(c.spec, "gather"), together);
      for (int step = 0; step < 3; ++step) {
        Values values = gradients(0, step);
        for (auto& of_parameter : values) {
          std::ranges::fill(of_parameter, together.rank() == 0 ? of_parameter[0] : 0.0f);
        }
        hand_over(reducer, values);
        check(reducer.wait() == StepOutcome::kCommitted, "not committed");
      }
      Values mean = means(reducer);
      if (together.rank() == 0) {
        reducer.rebuild(*alone[0]);
        for (int step = 3; step < 6; ++step) {
          step_from(reducer, mean, c, 0, 1, step);
        }
      }
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerVelocity, PlansCountItsMemory) {
  const size_t numel = 18956;
  const std::string plain = plan_with("int4", "gather").describe();
  const std::string with = plan_with("int4,momentum=0.9", "gather").describe();
  EXPECT_TRUE(contains(plain, "in compressors 0 bytes")) << plain;
  EXPECT_TRUE(contains(with, concat("in compressors ", 8 * numel, " bytes"))) << with;
}

}  // namespace
}  // namespace gradwire::test
