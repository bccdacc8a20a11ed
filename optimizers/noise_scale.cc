#include "gradwire/optimizers/noise_scale.h"

#include <cmath>

#include "gradwire/kernels/core/error.h"

namespace gradwire {

NoiseScale::NoiseScale(uint64_t rank_batch, uint64_t ranks, double decay)
    : rank_batch_(static_cast<double>(rank_batch)),
      global_batch_(static_cast<double>(rank_batch) * static_cast<double>(ranks)),
      decay_(decay) {
  check(rank_batch >= 1, "noise scale: rank_batch is 0, must be at least 1");
  check(ranks >= 2, "noise scale: ranks is ", ranks,
        ", must be at least 2: one gradient alone does not show how much it varies");
  check(decay >= 0.0 && decay < 1.0, "noise scale: decay is ", decay, ", must be in [0, 1)");
}

void NoiseScale::add(double mean_of_squares, double square_of_mean) {
  check(std::isfinite(mean_of_squares) && mean_of_squares >= 0.0,
        "noise scale: mean_of_squares is ", mean_of_squares, ", must be finite and >= 0");
  check(std::isfinite(square_of_mean) && square_of_mean >= 0.0, "noise scale: square_of_mean is ",
        square_of_mean, ", must be finite and >= 0");
  const double gradient = (global_batch_ * square_of_mean - rank_batch_ * mean_of_squares) /
                          (global_batch_ - rank_batch_);
  const double noise =
      (mean_of_squares - square_of_mean) / (1.0 / rank_batch_ - 1.0 / global_batch_);
  gradient_ = decay_ * gradient_ + gradient;
  noise_ = decay_ * noise_ + noise;
  weight_ = decay_ * weight_ + 1.0;
  ++steps_;
}

std::optional<double> NoiseScale::gradient_square() const {
  return steps_ == 0 ? std::nullopt : std::optional(average(gradient_));
}

std::optional<double> NoiseScale::noise() const {
  return steps_ == 0 ? std::nullopt : std::optional(average(noise_));
}

std::optional<double> NoiseScale::value() const {
  return gradient_ > 0.0 && noise_ > 0.0 ? std::optional(noise_ / gradient_) : std::nullopt;
}

// (1 + value / at_batch) / (1 + value / batch)
std::optional<double> NoiseScale::share(uint64_t at_batch, uint64_t batch) const {
  check(at_batch >= 1 && batch >= 1, "noise scale: batches are ", at_batch, " and ", batch,
        ", must be at least 1");
  const std::optional<double> scale = value();
  if (!scale) {
    return std::nullopt;
  }
  return (1.0 + *scale / static_cast<double>(at_batch)) /
         (1.0 + *scale / static_cast<double>(batch));
}

std::optional<double> NoiseScale::rate_for(double rate, uint64_t at_batch, uint64_t batch) const {
  check(std::isfinite(rate) && rate >= 0.0, "noise scale: rate is ", rate,
        ", must be finite and >= 0");
  const auto factor = share(at_batch, batch);
  return factor ? std::optional(rate * *factor) : std::nullopt;
}

std::optional<double> NoiseScale::steps_for(double steps, uint64_t at_batch, uint64_t batch) const {
  check(std::isfinite(steps) && steps >= 0.0, "noise scale: steps is ", steps,
        ", must be finite and >= 0");
  const auto factor = share(at_batch, batch);
  return factor ? std::optional(steps / *factor) : std::nullopt;
}

}  // namespace gradwire
