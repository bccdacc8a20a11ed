#pragma once
// The gradient noise scale: about how large a batch still speeds training up, measured for free
// where data-parallel ranks average gradients. McCandlish et al., An Empirical Model of Large-Batch
// Training, arXiv 1812.06162, appendix A.1.

#include <cstdint>
#include <optional>

namespace gradwire {

/// Of P ranks with a batch of b each, B = b P, g_b one rank's gradient and g_B their mean:
///   |G|^2 = (B |g_B|^2 - b mean |g_b|^2) / (B - b)
///   S     = (mean |g_b|^2 - |g_B|^2) / (1/b - 1/B)
/// both unbiased for every step, averaged over steps before they are divided.
class NoiseScale {
 public:
  /// `decay` is what one step's estimate is worth in the next one's averages.
  /// @throws InvalidArgument unless there are at least 2 ranks, a batch of at least 1, and decay is
  /// in [0, 1).
  NoiseScale(uint64_t rank_batch, uint64_t ranks, double decay = 0.99);

  /// One step: the mean over the ranks of their gradients' squared norms, and the squared norm of
  /// the mean gradient. @throws InvalidArgument, and forgets the step, unless both are finite and
  /// >= 0.
  void add(double mean_of_squares, double square_of_mean);

  uint64_t steps() const { return steps_; }
  /// |G|^2, the squared norm of the true gradient, and S, the sum of its elements' variances over
  /// single examples; nothing before the first step.
  std::optional<double> gradient_square() const;
  std::optional<double> noise() const;
  /// S / |G|^2, in examples. Nothing while the averages are not both positive: too few steps.
  std::optional<double> value() const;

  /// The learning rate at `batch`, where `rate` is the best one at `at_batch`:
  /// in proportion to 1 / (1 + value() / batch), equation 2.10. It grows linearly below the noise
  /// scale and hardly above it. Nothing where value() is nothing.
  std::optional<double> rate_for(double rate, uint64_t at_batch, uint64_t batch) const;
  /// How many steps `batch` takes to get as far as `steps` of `at_batch`: in proportion to
  /// 1 + value() / batch, equation 2.12.
  std::optional<double> steps_for(double steps, uint64_t at_batch, uint64_t batch) const;

 private:
  std::optional<double> share(uint64_t at_batch, uint64_t batch) const;
  double average(double sum) const { return sum / weight_; }

  const double rank_batch_, global_batch_, decay_;
  uint64_t steps_ = 0;
  double weight_ = 0.0;  // of the steps in the sums
  double gradient_ = 0.0, noise_ = 0.0;
};

}  // namespace gradwire
