#pragma once
// Is what compression leaves out doing harm? From norms and losses of a window of steps: keep,
// compress less, compress more again, or not at all.

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::planner {

/// Of one parameter or bucket, squared, over the ranks together (sums), the same on all of them.
struct GuardNorms {
  double to_send = 0;  ///< |a|^2, a = gradient + residual before the step
  /// |C(a)|^2, what the payload decodes to; with feedback a less what waits after the exchange,
  /// which may have put back more than this rank's own.
  double sent = 0;
  double residual =
      0;  ///< |a - C(a)|^2, what waits after the step; also of a spec without feedback
  double gradient = 0;  ///< |g|^2, of the ranks' own gradients
  double mean = 0;      ///< |mean gradient|^2, as the optimizer gets it: for the log alone
};

/// What a window of steps has shown.
struct GuardWindow {
  std::vector<GuardNorms> units = {};  ///< empty: not measured, nothing was compressed
  double loss = kUnknown;              ///< mean over steps and ranks
  /// Nothing was compressed: whatever the loss is, the job itself has come to it. One that would be
  /// a collapse is the first of those that later ones are compared with.
  bool dense = false;
  size_t steps = 0;
  size_t skipped = 0;  ///< of them, for gradients that were not finite
  double step_s = 0;   ///< median seconds of a step; 0: not known
  double dense_step_s =
      0;  ///< the same without compression; 0: not known, or nothing is compressed

  static constexpr double kUnknown = -1e300;  ///< NaN is a loss, and a bad one
};

enum class Verdict : unsigned char { kKeep, kTighten, kLoosen, kOff };
std::string_view to_string(Verdict verdict);

struct GuardOptions {
  /// Least |C(a)| / |a|: below it what is left waits for some 1 / gain^2 steps. GraVAC asks for
  /// 0.75 without counting what waits (arXiv:2305.12201); with error feedback far less is sent in
  /// runs that converge as dense ones do.
  double least_gain = 0.1;
  /// Largest |a - C(a)| / |a| where no less is sent than was to be. From 1 on C is no contraction:
  /// what waits may grow without bound (Karimireddy et al., arXiv:1901.09847), or without feedback
  /// noise is larger than the gradient.
  double most_error = 1;
  /// Below this |a - C(a)| / |a| compression is not what changes norms or losses.
  double least_error = 0.05;
  /// Largest |residual| / |gradient|: how many steps' gradients wait.
  double most_residual = 30;
  double residual_growth = 0.25;  ///< of that from window to window, in `growth_windows` running
  size_t growth_windows = 3;
  /// Accordion's eta: ||g before| - |g|| / |g before| at which learning is in a critical regime
  /// (Agarwal et al., arXiv:2010.16248). Here of the ranks' own gradients, against the running mean
  /// of the windows before, and where they rise: they fall where learning is fastest, and sending
  /// more then has made runs longer and no more accurate (docs/auto.md).
  double norm_change = 0.5;
  /// Windows' losses that a loss is compared with; at least three are needed.
  size_t loss_windows = 8;
  /// Median absolute deviations (times 1.4826, as a normal standard deviation) above their median
  /// at which a loss is a spike, and at which it is a collapse.
  double loss_spike = 4, loss_collapse = 12;
  double least_deviation = 0.1;  ///< of the median: losses nearer together than that are alike
  size_t quiet_windows = 3;      ///< without a signal, before compressing more again
  /// Units count by |a|^2: what is seen in units with less than this share is noise.
  double least_share = 0.1;
};

/// @throws InvalidArgument for an option out of its range.
void validate(const GuardOptions& options);

struct GuardVerdict {
  Verdict overall = Verdict::kKeep;
  std::string reason;               ///< which signal, its number and its limit
  std::vector<Verdict> units = {};  ///< kKeep or kTighten of each
  double gain = 1;                  ///< of all units together: |C(a)| / |a|
  double error = 0;                 ///< |a - C(a)| / |a|
  double residual = 0;              ///< |residual| / |gradient|
  double norm_change = 0;           ///< the largest rise among the units that count
  double mean_norm = 0;             ///< |mean gradient|
  double loss_deviations = 0;       ///< above the median of past windows
};

/// Pure: no clock, device or network. Feed it the same numbers on all ranks and it says the same.
class Guard {
 public:
  /// @throws InvalidArgument as validate().
  explicit Guard(GuardOptions options = {});

  /// Tightens at once; loosens after options.quiet_windows windows without a signal, then counts
  /// anew; off for a collapse, losses that are no numbers, more than half of the steps skipped, and
  /// steps that are not faster than dense ones. @throws InvalidArgument for norms that are negative
  /// or not finite, or another number of units than before.
  GuardVerdict judge(const GuardWindow& window);

  /// Says that what is sent has changed: what was learned of gains and residuals is forgotten, what
  /// was learned of gradients and losses is kept.
  void plan_changed();

 private:
  struct Unit {
    double norm = -1;  ///< |gradient|, mean over windows with weights 1/2, 1/4, ...; below 0: none
    double residual = -1;  ///< |residual| / |gradient| of the window before
    size_t growing = 0;
  };

  void judge_units(const GuardWindow& window, GuardVerdict& verdict);
  void judge_loss(const GuardWindow& window, GuardVerdict& verdict);

  GuardOptions options_;
  std::vector<Unit> units_;
  std::deque<double> losses_;
  size_t quiet_ = 0;
};

}  // namespace gradwire::planner
