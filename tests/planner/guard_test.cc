// The guard's verdicts against limits worked out by hand.

#include "gradwire/planner/guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

/// One unit: |a| is 100, of which `gain` is sent; |g| is `norm` and `residual` times that waits.
GuardNorms unit(double gain, double residual = 10, double norm = 1) {
  return {.to_send = 1e4,
          .sent = gain * gain * 1e4,
          .residual = residual * residual * norm * norm,
          .gradient = norm * norm};
}

GuardWindow window_of(std::vector<GuardNorms> units, double loss = GuardWindow::kUnknown) {
  return {.units = std::move(units), .loss = loss, .steps = 10};
}

TEST(Guard, LoosensAfterThreeQuietWindowsAndCountsAnew) {
  Guard guard;
  std::vector<Verdict> verdicts;
  for (int i = 0; i < 7; ++i) {
    verdicts.push_back(guard.judge(window_of({unit(0.5)})).overall);
  }
  using enum Verdict;
  EXPECT_EQ(verdicts, (std::vector<Verdict>{kKeep, kKeep, kLoosen, kKeep, kKeep, kLoosen, kKeep}));
}

TEST(Guard, ASignalEndsTheQuiet) {
  Guard guard;
  guard.judge(window_of({unit(0.5)}));
  guard.judge(window_of({unit(0.5)}));
  EXPECT_EQ(guard.judge(window_of({unit(0.01)})).overall, Verdict::kTighten);
  EXPECT_EQ(guard.judge(window_of({unit(0.5)})).overall, Verdict::kKeep);
}

TEST(Guard, TightensWhereLittleOfTheGradientIsSent) {
  Guard guard({.least_gain = 0.2});
  EXPECT_EQ(guard.judge(window_of({unit(0.21)})).overall, Verdict::kKeep);
  const GuardVerdict low = guard.judge(window_of({unit(0.19)}));
  EXPECT_EQ(low.overall, Verdict::kTighten);
  EXPECT_EQ(low.units, std::vector<Verdict>{Verdict::kTighten});
  EXPECT_NEAR(low.gain, 0.19, 1e-12);
  EXPECT_NE(low.reason.find("0.19"), std::string::npos) << low.reason;
  EXPECT_NE(low.reason.find("0.2"), std::string::npos) << low.reason;
}

TEST(Guard, AnErrorOfOneIsWrongOnlyWhereAsMuchIsSentAsThereWas) {
  // A parameter of which a top-k has chosen nothing waits whole; where what is left out of a sum
  // waits with one rank the squares of what waits are more than those of its parts, (x + x)^2 beside
  // x^2 + x^2; noise is sent on top of what there was.
  for (const auto& [gain, error, expected] :
       {std::tuple{0.0, 1.0, Verdict::kTighten},
        {0.5, 1.2, Verdict::kKeep},
        {0.99, 1.0, Verdict::kKeep},
        {1.0, 1.0, Verdict::kOff},
        {1.5, 0.99, Verdict::kKeep}}) {
    Guard guard({.most_residual = 1000});
    GuardNorms whole = unit(gain);
    whole.residual = error * error * whole.to_send;
    const GuardVerdict verdict = guard.judge(window_of({unit(0.5), whole}));
    EXPECT_EQ(verdict.overall, expected) << gain << ", " << error << ": " << verdict.reason;
    if (expected == Verdict::kOff) {
      EXPECT_NE(verdict.reason.find("50% of what is to be sent are sent with an error of 1"),
                std::string::npos)
          << verdict.reason;
    }
  }
}

TEST(Guard, LeavesUnitsAloneThatHoldLittle) {
  Guard guard({.least_share = 0.1});
  GuardNorms large = unit(0.5), small = unit(0.01);
  small.to_send = 0.1e4;  // an eleventh of all
  small.sent = 0.1;
  small.residual = 1;
  const GuardVerdict verdict = guard.judge(window_of({large, small}));
  EXPECT_EQ(verdict.overall, Verdict::kKeep);
  EXPECT_EQ(verdict.units, (std::vector<Verdict>{Verdict::kKeep, Verdict::kTighten}));
  small.to_send = 0.12e4;  // a tenth and more
  EXPECT_EQ(guard.judge(window_of({large, small})).overall, Verdict::kTighten);
}

TEST(Guard, TightensWhereMoreAndMoreWaits) {
  Guard guard(
      {.most_residual = 40, .residual_growth = 0.25, .growth_windows = 3, .quiet_windows = 100});
  double residual = 1;
  for (const Verdict expected :
       {Verdict::kKeep, Verdict::kKeep, Verdict::kKeep, Verdict::kTighten}) {
    EXPECT_EQ(guard.judge(window_of({unit(0.5, residual)})).overall, expected) << residual;
    residual *= 1.26;
  }
  guard.plan_changed();
  EXPECT_EQ(guard.judge(window_of({unit(0.5, residual * 2)})).overall, Verdict::kKeep);
  EXPECT_EQ(guard.judge(window_of({unit(0.5, 41)})).overall, Verdict::kTighten);
}

TEST(Guard, SeesNormsThatRiseByHalfAndLetsThemFall) {
  for (const auto& [norm, critical] : {std::pair{0.4, false}, {1.49, false}, {1.5, true}}) {
    Guard guard;
    EXPECT_EQ(guard.judge(window_of({unit(0.5, 10, 1)})).overall, Verdict::kKeep);
    EXPECT_EQ(guard.judge(window_of({unit(0.5, 10 / norm, norm)})).overall,
              critical ? Verdict::kTighten : Verdict::kKeep)
        << norm;
  }
}

TEST(Guard, LooksAtTheMeanOfTheWindowsBefore) {
  Guard guard;
  for (const double norm : {1.0, 1.4, 1.0}) {  // running means 1, 1.2, 1.1
    EXPECT_NE(guard.judge(window_of({unit(0.5, 10, norm)})).overall, Verdict::kTighten) << norm;
  }
  const GuardVerdict verdict = guard.judge(window_of({unit(0.5, 10, 1.6)}));
  EXPECT_NEAR(verdict.norm_change, 0.5 / 1.1, 1e-12);
}

TEST(Guard, IsOffWhereCompressionIsNoContraction) {
  EXPECT_EQ(Guard().judge(window_of({unit(0.5, 99), unit(0.5)})).overall, Verdict::kTighten);
  Guard guard({.most_residual = 1000});
  EXPECT_EQ(guard.judge(window_of({unit(1, 99)})).overall, Verdict::kKeep);
  const GuardVerdict verdict = guard.judge(window_of({unit(1, 100)}));
  EXPECT_EQ(verdict.overall, Verdict::kOff);
  EXPECT_EQ(verdict.error, 1);
}

TEST(Guard, DoesNotBlameWhatSendsNearlyAll) {
  for (const auto& [residual, expected] :
       {std::pair{4.9, Verdict::kKeep}, {5.0, Verdict::kTighten}}) {
    Guard norms, losses;
    norms.judge(window_of({unit(1, residual, 1)}));
    GuardNorms doubled = unit(1, residual, 2);
    doubled.residual = residual * residual;
    EXPECT_EQ(norms.judge(window_of({doubled})).overall, expected);
    for (int i = 0; i < 3; ++i) {
      losses.judge(window_of({}, 1));
    }
    EXPECT_EQ(losses.judge(window_of({unit(1, residual)}, 2)).overall, expected);
    EXPECT_EQ(losses.judge(window_of({unit(1, residual)}, 4)).overall, Verdict::kOff);
  }
}

TEST(Guard, ComparesLossesWithTheMedianOfThoseBefore) {
  // Of 1.0, 1.1, 0.9, 1.0: the median is 1, deviations 0, 0.1, 0.1, 0, so 0.05 * 1.4826 is one.
  const double deviation = 0.05 * 1.4826;
  for (const auto& [loss, expected] : {std::pair{1 + 3.9 * deviation, Verdict::kKeep},
                                       {1 + 4.1 * deviation, Verdict::kTighten},
                                       {1 + 11.9 * deviation, Verdict::kTighten},
                                       {1 + 12.1 * deviation, Verdict::kOff},
                                       {0.1, Verdict::kKeep},
                                       {std::nan(""), Verdict::kOff},
                                       {std::numeric_limits<double>::infinity(), Verdict::kOff}}) {
    Guard guard(
        {.loss_spike = 4, .loss_collapse = 12, .least_deviation = 0.01, .quiet_windows = 100});
    for (const double past : {1.0, 1.1, 0.9, 1.0}) {
      EXPECT_EQ(guard.judge(window_of({}, past)).overall, Verdict::kKeep);
    }
    const GuardVerdict verdict = guard.judge(window_of({}, loss));
    EXPECT_EQ(verdict.overall, expected) << loss;
    if (std::isfinite(loss)) {
      EXPECT_NEAR(verdict.loss_deviations, (loss - 1) / deviation, 1e-9);
    }
  }
}

TEST(Guard, NormsThatNobodyKnowsDoNotExcuseASpike) {
  // Of a spec with a momentum all norms are 0: not the error of 0 of what sends everything.
  Guard guard(
      {.loss_spike = 4, .loss_collapse = 12, .least_deviation = 0.01, .quiet_windows = 100});
  const std::vector<GuardNorms> unknown(2);
  for (const double past : {1.0, 1.1, 0.9, 1.0}) {
    EXPECT_EQ(guard.judge(window_of(unknown, past)).overall, Verdict::kKeep);
  }
  EXPECT_EQ(guard.judge(window_of(unknown, 1.5)).overall, Verdict::kTighten);
}

TEST(Guard, ACollapseIsNotWhatTheNextLossIsComparedWith) {
  Guard guard;
  for (int i = 0; i < 4; ++i) {
    guard.judge(window_of({}, 1));
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(guard.judge(window_of({}, 3)).overall, Verdict::kOff);
  }
}

TEST(Guard, WhateverAJobComesToWithoutCompressionIsItsLoss) {
  Guard guard;
  const auto judge = [&](double loss) {
    GuardWindow window = window_of({}, loss);
    window.dense = true;
    return guard.judge(window).overall;
  };
  for (int i = 0; i < 8; ++i) {
    judge(1);
  }
  EXPECT_EQ(judge(3), Verdict::kOff);
  EXPECT_EQ(judge(3), Verdict::kKeep);
  judge(3);
  EXPECT_EQ(guard.judge(window_of({unit(0.5)}, 3.3)).overall, Verdict::kLoosen);
  EXPECT_EQ(guard.judge(window_of({unit(0.5)}, 9)).overall, Verdict::kOff);
}

TEST(Guard, KnowsALossScalerFromARunThatBreaks) {
  const auto skipped = [](size_t steps) {
    GuardWindow window = window_of({unit(0.5)});
    window.skipped = steps;
    return Guard().judge(window).overall;
  };
  EXPECT_EQ(skipped(1), Verdict::kKeep);
  EXPECT_EQ(skipped(2), Verdict::kTighten);
  EXPECT_EQ(skipped(5), Verdict::kTighten);
  EXPECT_EQ(skipped(6), Verdict::kOff);
}

TEST(Guard, LossesNearEachOtherAreAlike) {
  for (const auto& [loss, expected] : {std::pair{1.39, Verdict::kKeep},
                                       {1.41, Verdict::kTighten},
                                       {2.19, Verdict::kTighten},
                                       {2.21, Verdict::kOff}}) {
    Guard guard({.quiet_windows = 100});
    for (int i = 0; i < 5; ++i) {
      guard.judge(window_of({}, 1));
    }
    EXPECT_EQ(guard.judge(window_of({}, loss)).overall, expected) << loss;
  }
}

TEST(Guard, IsOffWhereDenseStepsAreAsFast) {
  GuardWindow window = window_of({unit(0.5)});
  window.dense_step_s = 1;
  window.step_s = 0.99;
  EXPECT_EQ(Guard().judge(window).overall, Verdict::kKeep);
  window.step_s = 1;
  const GuardVerdict verdict = Guard().judge(window);
  EXPECT_EQ(verdict.overall, Verdict::kOff);
  EXPECT_NE(verdict.reason.find("without compression 1 s"), std::string::npos) << verdict.reason;
}

TEST(Guard, RefusesWhatCannotBe) {
  Guard guard;
  GuardNorms bad = unit(0.5);
  bad.sent = -1;
  EXPECT_NE(message_of([&] { guard.judge(window_of({bad})); }).find("unit 0 is -1"),
            std::string::npos);
  guard.judge(window_of({unit(0.5), unit(0.5)}));
  EXPECT_EQ(message_of([&] { guard.judge(window_of({unit(0.5)})); }),
            "guard: 1 units, expected as before 2");
  GuardWindow window;
  window.skipped = 1;
  EXPECT_THROW(guard.judge(window), InvalidArgument);
  EXPECT_THROW(Guard({.least_gain = 2}), InvalidArgument);
  EXPECT_THROW(Guard({.most_error = 0}), InvalidArgument);
  EXPECT_THROW(Guard({.least_error = -1}), InvalidArgument);
  EXPECT_THROW(Guard({.most_residual = 0}), InvalidArgument);
  EXPECT_THROW(Guard({.loss_spike = std::nan("")}), InvalidArgument);
  EXPECT_THROW(Guard({.quiet_windows = 0}), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
