#include "gradwire/planner/guard.h"

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/median.h"

namespace gradwire::planner {
namespace {

constexpr double kNormal = 1.4826;  // standard deviation over median absolute deviation

double ratio(double above, double below) { return below > 0 ? std::sqrt(above / below) : 0; }

void check_norms(const GuardNorms& norms, size_t unit) {
  for (const double value :
       {norms.to_send, norms.sent, norms.residual, norms.gradient, norms.mean}) {
    check(std::isfinite(value) && value >= 0, "guard: a squared norm of unit ", unit, " is ", value,
          ", must be finite and not negative");
  }
}

/// The worst of what was seen decides, and says why.
void raise(GuardVerdict& verdict, Verdict to, const std::string& reason) {
  const bool worse =
      to == Verdict::kOff ? verdict.overall != Verdict::kOff : verdict.overall == Verdict::kKeep;
  if (worse) {
    verdict.overall = to;
    verdict.reason = reason;
  }
}

/// Of some specs nobody can tell what they leave out: their norms are 0.
bool knows_norms(const GuardWindow& window) {
  return std::ranges::any_of(window.units,
                             [](const GuardNorms& norms) { return norms.to_send > 0; });
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kKeep:
      return "keep";
    case Verdict::kTighten:
      return "tighten";
    case Verdict::kLoosen:
      return "loosen";
    case Verdict::kOff:
      return "off";
  }
  return "unknown";
}

void validate(const GuardOptions& options) {
  const auto positive = [](double value, std::string_view name) {
    check(std::isfinite(value) && value > 0, "guard: ", name, " is ", value,
          ", must be finite and above 0");
  };
  check(options.least_gain >= 0 && options.least_gain <= 1, "guard: least_gain is ",
        options.least_gain, ", must be in [0, 1]");
  check(options.least_share >= 0 && options.least_share <= 1, "guard: least_share is ",
        options.least_share, ", must be in [0, 1]");
  positive(options.most_error, "most_error");
  check(options.least_error >= 0, "guard: least_error is ", options.least_error,
        ", must not be negative");
  positive(options.most_residual, "most_residual");
  positive(options.residual_growth, "residual_growth");
  positive(options.norm_change, "norm_change");
  positive(options.loss_spike, "loss_spike");
  positive(options.loss_collapse, "loss_collapse");
  positive(options.least_deviation, "least_deviation");
  check(options.growth_windows >= 1, "guard: growth_windows is 0, must be at least 1");
  check(options.quiet_windows >= 1, "guard: quiet_windows is 0, must be at least 1");
  check(options.loss_windows >= 3, "guard: loss_windows is ", options.loss_windows,
        ", must be at least 3");
}

Guard::Guard(GuardOptions options) : options_(options) { validate(options_); }

void Guard::plan_changed() {
  for (Unit& unit : units_) {
    unit.residual = -1;
    unit.growing = 0;
  }
  quiet_ = 0;
}

void Guard::judge_units(const GuardWindow& window, GuardVerdict& verdict) {
  units_.resize(window.units.size());
  GuardNorms all;
  for (size_t i = 0; i < window.units.size(); ++i) {
    const GuardNorms& norms = window.units[i];
    all.to_send += norms.to_send;
    all.sent += norms.sent;
    all.residual += norms.residual;
    all.gradient += norms.gradient;
    all.mean += norms.mean;
  }
  verdict.gain = all.to_send > 0 ? ratio(all.sent, all.to_send) : 1;
  verdict.error = ratio(all.residual, all.to_send);
  verdict.residual = ratio(all.residual, all.gradient);
  verdict.mean_norm = std::sqrt(all.mean);
  const bool lossy = verdict.error >= options_.least_error;
  verdict.units.assign(units_.size(), Verdict::kKeep);
  double low_gain = 0, wrong = 0, waiting = 0, growing = 0,
         changing = 0;  // |a|^2 of the units concerned
  for (size_t i = 0; i < units_.size(); ++i) {
    const GuardNorms& norms = window.units[i];
    Unit& unit = units_[i];
    const auto seen = [&](bool signal, double& share) {
      if (signal) {
        share += norms.to_send;
        verdict.units[i] = Verdict::kTighten;
      }
    };
    const double residual = ratio(norms.residual, norms.gradient);
    const bool grows =
        unit.residual > 0 && residual > unit.residual * (1 + options_.residual_growth);
    unit.growing = grows ? unit.growing + 1 : 0;
    unit.residual = residual;
    const bool little = ratio(norms.sent, norms.to_send) < options_.least_gain;
    seen(norms.to_send > 0 && little, low_gain);
    // Noise is sent beside what was to be, so that more is sent than there was. Where less is, an
    // error of 1 is no wrong: of a parameter of which nothing is chosen all waits, and what a
    // two-shot exchange chooses from a sum and leaves out waits with one rank for all of them, whose
    // squares are then more than those of the parts.
    seen(norms.to_send > 0 && norms.sent >= norms.to_send &&
             ratio(norms.residual, norms.to_send) >= options_.most_error,
         wrong);
    seen(residual > options_.most_residual, waiting);
    seen(unit.growing >= options_.growth_windows, growing);
    const double norm = std::sqrt(norms.gradient);
    if (unit.norm > 0) {
      const double change = (norm - unit.norm) / unit.norm;
      seen(lossy && change >= options_.norm_change, changing);
      if (norms.to_send >= options_.least_share * all.to_send) {
        verdict.norm_change = std::max(verdict.norm_change, change);
      }
    }
    unit.norm = unit.norm < 0 ? norm : (unit.norm + norm) / 2;
  }
  const auto counts = [&](double share) {
    return share > 0 && share >= options_.least_share * all.to_send;
  };
  if (counts(low_gain)) {
    raise(verdict, Verdict::kTighten,
          concat("gain ", verdict.gain, ": parameters with ", 100 * low_gain / all.to_send,
                 "% of what is to be sent are below ", options_.least_gain));
  }
  if (counts(wrong)) {
    raise(verdict, Verdict::kOff,
          concat("parameters with ", 100 * wrong / all.to_send,
                 "% of what is to be sent are sent with an error of ", options_.most_error,
                 " and more; of all it is ", verdict.error));
  }
  if (counts(waiting)) {
    raise(verdict, Verdict::kTighten,
          concat("residual is ", verdict.residual, " times the gradient, at most ",
                 options_.most_residual));
  }
  if (counts(growing)) {
    raise(verdict, Verdict::kTighten,
          concat("residual, now ", verdict.residual, " times the gradient, grew by more than ",
                 100 * options_.residual_growth, "% in ", options_.growth_windows,
                 " windows running"));
  }
  if (counts(changing)) {
    raise(verdict, Verdict::kTighten,
          concat("norm of the gradient rose by ", 100 * verdict.norm_change, "%, critical from ",
                 100 * options_.norm_change, "%"));
  }
}

void Guard::judge_loss(const GuardWindow& window, GuardVerdict& verdict) {
  if (window.loss == GuardWindow::kUnknown) {
    return;
  }
  if (!std::isfinite(window.loss)) {
    raise(verdict, Verdict::kOff, concat("loss is ", window.loss));
    return;
  }
  if (losses_.size() >= 3) {
    const std::vector<double> past(losses_.begin(), losses_.end());
    const double middle = median_of(past);
    std::vector<double> deviations;
    for (const double loss : past) {
      deviations.push_back(std::abs(loss - middle));
    }
    const double deviation =
        std::max(kNormal * median_of(deviations), options_.least_deviation * std::abs(middle));
    verdict.loss_deviations = deviation > 0          ? (window.loss - middle) / deviation
                              : window.loss > middle ? options_.loss_spike
                                                     : 0;
    const std::string reason = concat("loss ", window.loss, " is ", verdict.loss_deviations,
                                      " deviations above the ", middle, " of past windows");
    if (verdict.loss_deviations >= options_.loss_collapse) {
      raise(verdict, Verdict::kOff, reason);
    } else if (verdict.loss_deviations >= options_.loss_spike &&
               (!knows_norms(window) || verdict.error >= options_.least_error)) {
      raise(verdict, Verdict::kTighten, reason);
    }
  }
  // A collapse does not become what the next window is compared with. But where the job came to it
  // without compression (other data, a loss that counts something more) nothing from before does.
  if (verdict.overall == Verdict::kOff && window.dense) {
    losses_.clear();
  }
  if (verdict.overall != Verdict::kOff || window.dense) {
    losses_.push_back(window.loss);
    if (losses_.size() > options_.loss_windows) {
      losses_.pop_front();
    }
  }
}

GuardVerdict Guard::judge(const GuardWindow& window) {
  check(window.skipped <= window.steps, "guard: ", window.skipped, " steps skipped of ",
        window.steps, ", expected at most as many");
  check(units_.empty() || window.units.empty() || units_.size() == window.units.size(),
        "guard: ", window.units.size(), " units, expected as before ", units_.size());
  for (size_t i = 0; i < window.units.size(); ++i) {
    check_norms(window.units[i], i);
  }
  GuardVerdict verdict;
  if (!window.units.empty()) {
    judge_units(window, verdict);
  }
  judge_loss(window, verdict);
  if (2 * window.skipped > window.steps) {
    raise(verdict, Verdict::kOff,
          concat(window.skipped, " of ", window.steps, " steps skipped: gradients not finite"));
  } else if (window.skipped > 1) {  // one is what a loss scaler costs that looks for its scale
    raise(verdict, Verdict::kTighten,
          concat(window.skipped, " of ", window.steps, " steps skipped: gradients not finite"));
  }
  if (window.step_s > 0 && window.dense_step_s > 0 && window.step_s >= window.dense_step_s) {
    raise(verdict, Verdict::kOff,
          concat("a step takes ", window.step_s, " s, without compression ", window.dense_step_s,
                 " s"));
  }
  if (verdict.overall != Verdict::kKeep) {
    quiet_ = 0;
    return verdict;
  }
  if (++quiet_ >= options_.quiet_windows) {
    quiet_ = 0;
    verdict.overall = Verdict::kLoosen;
    verdict.reason = concat(options_.quiet_windows, " windows without a signal");
  } else {
    verdict.reason = "no signal";
  }
  return verdict;
}

}  // namespace gradwire::planner
