// The autopilot over ranks of one process, on links as slow as the test wants them.

#include "gradwire/planner/autopilot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <thread>

#include "tests/comm/wrapped_transport.h"
#include "tests/planner/message_of.h"
#include "tests/planner/small_training.h"
#include "tests/support/ranks.h"

namespace gradwire::planner {
namespace {

using test::SmallTraining;

/// Seconds per received byte, behind every exchange; the same for all ranks, and may change.
using Slowness = std::atomic<double>;

/// What a rank has behind a run.
struct Ran {
  std::vector<std::vector<float>> weights;
  std::vector<std::string> specs;  ///< that each step ran with
  std::vector<double> losses;
  double accuracy = 0;
  size_t wrong_means = 0;  ///< of dense steps, against both ranks' gradients (two ranks alone)
  size_t lost_residuals =
      0;  ///< steps of one and the same spec with feedback behind which none was left
  size_t untold_bytes = 0;  ///< steps whose trace had none, also where a new Reducer took over
  std::string log;
};

struct Job {
  int steps = 100;
  PilotOptions pilot = {};
  std::string by_hand = {};  ///< a spec: no autopilot
  float learning_rate = 0.05f;
  /// Called by rank 0 before each step.
  std::function<void(int step, const Autopilot& autopilot)> before = {};
};

/// The slowness is looked at behind each verb, where its payload has arrived.
std::vector<Ran> run(const Job& job, Slowness& slowness, int ranks = 2) {
  std::vector<Ran> runs(static_cast<size_t>(ranks));
  const auto ends = test::run_ranks(ranks, [&](Transport& in_process) {
    const auto pause = [&](double bytes) {
      std::this_thread::sleep_for(std::chrono::duration<double>(bytes * slowness.load()));
    };
    const auto arrived = [&](const Parts& all) {
      double bytes = 0;
      for (size_t r = 0; r < all.lengths.size(); ++r) {
        const bool own = r == static_cast<size_t>(in_process.rank());
        bytes += own ? 0 : static_cast<double>(all.lengths[r]);
      }
      pause(bytes);
    };
    test::WrappedTransport transport(in_process, arrived, [&](std::span<std::byte> bytes) {
      pause(static_cast<double>(bytes.size()));
    });
    Ran& ran = runs[static_cast<size_t>(transport.rank())];
    SmallTraining training(job.learning_rate);
    std::optional<Autopilot> autopilot;
    std::optional<Reducer> by_hand;
    if (job.by_hand.empty()) {
      autopilot.emplace(training.parameters(), transport,
                        AutopilotOptions{.pilot = job.pilot,
                                         .probe = {.budget = std::chrono::milliseconds(200)}});
    } else {
      PlanOptions options{.spec = parse_spec(job.by_hand)};
      by_hand.emplace(make_plan(training.parameters(), options), transport);
    }
    const size_t count = training.parameters().size();
    for (int step = 0; step < job.steps; ++step) {
      if (job.before && transport.rank() == 0 && autopilot) {
        job.before(step, *autopilot);
      }
      ran.specs.push_back(autopilot ? autopilot->pilot().plan().spec : job.by_hand);
      std::vector<std::span<float>> gradients;
      for (ParamId p = 0; p < count; ++p) {
        gradients.push_back(
            (autopilot ? autopilot->gradient(p) : by_hand->gradient(p)).as<float>());
      }
      const float loss =
          training.step(static_cast<unsigned>(1000 * step + transport.rank()), gradients);
      ran.losses.push_back(loss);
      std::vector<std::vector<float>> others, means;
      // Behind a compressor the first dense mean has what that still owed, too.
      const bool dense_before = step == 0 || ran.specs[static_cast<size_t>(step) - 1] == "none";
      if (autopilot && ranks == 2 && ran.specs.back() == "none" && dense_before) {
        std::vector<std::span<float>> places;
        for (ParamId p = 0; p < count; ++p) {
          means.emplace_back(gradients[p].begin(), gradients[p].end());
          others.emplace_back(gradients[p].size());
        }
        places.assign(others.begin(), others.end());
        training.step(static_cast<unsigned>(1000 * step + 1 - transport.rank()), places);
      }
      for (ParamId p = static_cast<ParamId>(count); p-- > 0;) {
        autopilot ? autopilot->grad_ready(p) : by_hand->grad_ready(p);
      }
      autopilot ? autopilot->wait(loss) : by_hand->wait();
      ran.untold_bytes += autopilot && autopilot->last_step().bytes_sent() == 0 ? 1 : 0;
      for (ParamId p = 0; p < means.size(); ++p) {
        const auto mean = autopilot->gradient(p).as<float>();
        for (size_t i = 0; i < mean.size(); ++i) {
          ran.wrong_means += std::abs(mean[i] - (means[p][i] + others[p][i]) / 2) > 1e-6f ? 1 : 0;
        }
      }
      if (autopilot && step > 0 && ran.specs.back() == "topk:1%" &&
          autopilot->pilot().plan().spec == "topk:1%") {
        const ConstResidual residual = autopilot->reducer().residual(0);
        ran.lost_residuals += std::ranges::all_of(residual, [](float e) { return e == 0; }) ? 1 : 0;
      }
      for (ParamId p = 0; p < count; ++p) {
        training.apply(p, (autopilot ? autopilot->gradient(p) : by_hand->gradient(p)).as<float>());
      }
    }
    ran.weights = training.weights();
    ran.accuracy = training.accuracy();
    ran.log = autopilot ? autopilot->pilot().log_json_lines() : "";
  });
  EXPECT_EQ(test::first_message(ends), "");
  return runs;
}

// 20 KB of gradients: dense some 40 ms, bf16 half of that, the others next to nothing.
constexpr double kSlow = 2e-6;

TEST(Autopilot, CompressesOnASlowLinkAndAllRanksDoTheSame) {
  Slowness slowness = 2 * kSlow;
  const auto runs = run({.steps = 70, .pilot = {.window_steps = 10}}, slowness, 3);
  // A dense exchange takes 100 ms there: no step begins with it.
  EXPECT_EQ(std::ranges::count(runs[0].specs, "none"), 0) << runs[0].log;
  EXPECT_NE(runs[0].log.find("\"what\":\"begin\""), std::string::npos) << runs[0].log;
  for (const Ran& ran : runs) {
    EXPECT_EQ(ran.weights, runs[0].weights);
    EXPECT_EQ(ran.specs, runs[0].specs);
    EXPECT_EQ(ran.log, runs[0].log);
  }
}

TEST(Autopilot, MaySendFactorsOfMatrices) {
  Slowness slowness = kSlow;
  // Where other work disturbs the timing of plans it is chosen at step 59 and not before.
  const auto runs =
      run({.steps = 120, .pilot = {.specs = {"powersgd:1"}, .window_steps = 10}}, slowness, 3);
  EXPECT_GT(std::ranges::count(runs[0].specs, "powersgd:1"), 40) << runs[0].log;
  EXPECT_NE(runs[0].log.find("predicted_s of powersgd:1"), std::string::npos) << runs[0].log;
  EXPECT_GT(runs[0].accuracy, 0.9) << runs[0].log;
  for (const Ran& ran : runs) {
    EXPECT_EQ(ran.weights, runs[0].weights);
    EXPECT_EQ(ran.log, runs[0].log);
  }
}

TEST(Autopilot, IsOffWhereTheExchangeIsNothing) {
  Slowness slowness = 0;
  // An exchange takes some hundred microseconds, also on a busy machine; the step is made to be of
  // any length here, so that the machine's load does not decide.
  const auto runs = run({.steps = 30,
                         .pilot = {.tolerance = 0.5, .window_steps = 10},
                         .before =
                             [](int, const Autopilot&) {
                               std::this_thread::sleep_for(std::chrono::milliseconds(20));
                             }},
                        slowness);
  EXPECT_EQ(runs[0].specs.back(), "none") << runs[0].log;
}

TEST(Autopilot, NoticesALinkThatChangesInTheMiddle) {
  Slowness slowness = 0;
  bool slowed = false;
  const auto runs = run({.steps = 100,
                         .pilot = {.tolerance = 0.2, .window_steps = 10},
                         .before =
                             [&](int step, const Autopilot&) {
                               std::this_thread::sleep_for(std::chrono::milliseconds(10));
                               if (step == 35 && !slowed) {
                                 slowed = true;
                                 slowness = 5 * kSlow;
                               }
                             }},
                        slowness);
  EXPECT_NE(runs[0].log.find("\"what\":\"link\""), std::string::npos) << runs[0].log;
  EXPECT_NE(runs[0].specs.back(), "none") << runs[0].log;
  EXPECT_EQ(runs[0].weights, runs[1].weights);
}

TEST(Autopilot, CatchesACollapseInTheFirstWindowAndRecovers) {
  // Error feedback of one level with stochastic rounding: what is left out may be larger than what
  // was to be sent, and grows. Found by trying all compressors on this problem.
  const std::string ruinous = "qsgd:1,ef";
  Slowness fast = 0, slow = kSlow / 2;
  const Ran dense = run({.steps = 300, .by_hand = "none"}, fast)[0];
  const Ran by_hand = run({.steps = 300, .by_hand = ruinous}, fast)[0];
  EXPECT_GT(dense.accuracy, 0.94);
  EXPECT_LT(by_hand.accuracy, 0.2);

  const size_t window = 10;
  const auto runs = run(
      {.steps = 300,
       .pilot = {.specs = {ruinous}, .hopeless = 0.1, .tuning_turns = 0, .window_steps = window}},
      slow);
  EXPECT_EQ(runs[0].weights, runs[1].weights);
  EXPECT_GT(runs[0].accuracy, dense.accuracy - 0.01) << runs[0].log;
  // At most its turns while it was timed, and one window.
  const auto ran_it = static_cast<size_t>(std::ranges::count(runs[0].specs, ruinous));
  EXPECT_GT(ran_it, 0u) << runs[0].log;
  EXPECT_LE(ran_it, 9 + window) << runs[0].log;
}

TEST(Autopilot, LeavesAloneWhatConverges) {
  Slowness slow = kSlow;
  const auto runs = run(
      {.steps = 300, .pilot = {.specs = {"topk:1%"}, .tuning_turns = 0, .window_steps = 10}}, slow);
  EXPECT_GT(runs[0].accuracy, 0.94);
  EXPECT_GT(std::ranges::count(runs[0].specs, "topk:1%"), 0) << runs[0].log;
  EXPECT_EQ(runs[0].log.find("\"what\":\"off\""), std::string::npos) << runs[0].log;
}

TEST(Autopilot, TriesStreamsAndKeepsRanksAlike) {
  Slowness slow = kSlow;  // every change of their number makes a new Reducer
  const auto runs =
      run({.steps = 60, .pilot = {.specs = {"topk:1%"}, .streams = {1, 2, 3}, .window_steps = 10}},
          slow);
  EXPECT_EQ(runs[0].weights, runs[1].weights);
  EXPECT_EQ(runs[0].log, runs[1].log);
  EXPECT_NE(runs[0].log.find("\"what\":\"tune\""), std::string::npos) << runs[0].log;
  EXPECT_NE(runs[0].log.find("streams\":"), std::string::npos) << runs[0].log;
  for (const Ran& ran : runs) {
    EXPECT_EQ(ran.lost_residuals, 0u) << ran.log;
    EXPECT_EQ(ran.wrong_means, 0u) << ran.log;
    EXPECT_EQ(ran.untold_bytes, 0u) << ran.log;
  }
}

/// A step of both ranks, each with samples of its own.
void train(SmallTraining& training, Autopilot& autopilot, int step, int rank) {
  std::vector<std::span<float>> gradients;
  for (ParamId p = 0; p < training.parameters().size(); ++p) {
    gradients.push_back(autopilot.gradient(p).as<float>());
  }
  const float loss = training.step(static_cast<unsigned>(1000 * step + rank), gradients);
  for (ParamId p = static_cast<ParamId>(gradients.size()); p-- > 0;) {
    autopilot.grad_ready(p);
  }
  autopilot.wait(loss);
  for (ParamId p = 0; p < gradients.size(); ++p) {
    training.apply(p, autopilot.gradient(p).as<float>());
  }
}

TEST(Autopilot, KeepsAFormerRunsPlanForSomeStepsAndThenBegins) {
  const auto ends = test::run_ranks(2, [](Transport& transport) {
    SmallTraining training;
    Autopilot autopilot(SmallTraining::parameters(), transport);
    const std::string dense = autopilot.plan().describe();
    const Plan former =
        make_plan(SmallTraining::parameters(), {.spec = parse_spec("topk:1%"), .bucket_bytes = 1});
    EXPECT_EQ(message_of([&] { autopilot.keep(former, 0); }),
              "autopilot: keeps a plan for 0 steps, must be at least 1");
    EXPECT_THROW(autopilot.last_step(), InvalidArgument);
    autopilot.keep(former, 7);
    EXPECT_EQ(autopilot.epoch(), 1u);
    for (int step = 0; step < 7; ++step) {
      EXPECT_EQ(autopilot.plan().describe(), former.describe()) << step;
      train(training, autopilot, step, transport.rank());
      EXPECT_EQ(autopilot.last_step().buckets.size(), former.buckets.size());
    }
    EXPECT_EQ(autopilot.plan().describe(), dense);
    EXPECT_EQ(autopilot.epoch(), 2u);
    EXPECT_EQ(autopilot.pilot().steps(), 0u);
    for (int step = 7; step < 12; ++step) {
      EXPECT_TRUE(autopilot.pilot().log().empty());
      train(training, autopilot, step, transport.rank());
    }
    EXPECT_EQ(autopilot.pilot().steps(), 5u);
    EXPECT_FALSE(autopilot.pilot().log().empty());
    EXPECT_NE(message_of([&] { autopilot.keep(former, 3); }).find("behind a step"),
              std::string::npos);
  });
  EXPECT_EQ(test::first_message(ends), "");
}

TEST(Autopilot, TimeThatIsLeftOutIsNoPartOfAStep) {
  const auto ends = test::run_ranks(2, [](Transport& transport) {
    SmallTraining training;
    Autopilot autopilot(SmallTraining::parameters(), transport);
    for (int step = 0; step < 5; ++step) {
      train(training, autopilot, step, transport.rank());
      autopilot.leave_out(std::chrono::hours(-1));  // so much longer
    }
    ASSERT_EQ(autopilot.pilot().log().size(), 1u);
    EXPECT_GT(autopilot.pilot().log()[0].numbers.at("step_s"), 3600);
  });
  EXPECT_EQ(test::first_message(ends), "");
}

TEST(Autopilot, RefusesWhatCannotBe) {
  const auto ends = test::run_ranks(1, [](Transport& transport) {
    const auto refused = [&](AutopilotOptions options) {
      return message_of(
          [&] { Autopilot(SmallTraining::parameters(), transport, std::move(options)); });
    };
    EXPECT_EQ(refused({.norm_steps = 0}), "autopilot: norm_steps is 0, must be at least 1");
    EXPECT_EQ(refused({.codec_numel = 1}), "autopilot: codec_numel is 1, must be at least 4096");
    EXPECT_NE(refused({.pilot = {.specs = {"telepathy"}}}).find("telepathy"), std::string::npos);
    Autopilot alone(SmallTraining::parameters(), transport);
    EXPECT_THROW(alone.grad_ready(9), InvalidArgument);
    EXPECT_THROW(alone.wait(), InvalidArgument);  // nothing was ready
  });
  EXPECT_EQ(test::first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::planner
