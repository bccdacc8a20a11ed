#pragma once
// The loops of a step over one block of one parameter: fused updates and sums of squares. Each is a
// pure function of its block, so that bits depend neither on threads nor on the instruction set.

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire::cpu {

bool all_finite(std::span<const float> x);

/// A float as a bfloat16, rounded to nearest with ties away from zero, and its own lower 16 bits:
/// together they are the float again, bit for bit, because rounding up shows in the lower half's
/// first bit.
void split_halves(std::span<const float> x, std::span<bfloat16> upper, std::span<uint16_t> lower);
void join_halves(std::span<const bfloat16> upper, std::span<const uint16_t> lower,
                 std::span<float> out);

/// Summed per 1024 elements in 32 strided float lanes folded pairwise, then in double. Where
/// squares leave float's range (values above 1e19, or a sum below 1e-30) those 1024 are summed in
/// double: the result is infinite or NaN if and only if an element is.
double sum_of_squares(std::span<const float> x);

/// The sum of squares of factor g + wd w. Changes nothing.
double decayed_sum_of_squares(std::span<const float> value, std::span<const float> gradient,
                              float factor, float weight_decay);

/// What the update of a block works on; the spans have equal size.
struct MomentumBlock {
  std::span<float> value;
  std::span<float> momentum;
  std::span<const float> gradient;
};
/// d = scale (factor g + wd w). One of scale and rate is the learning rate's, so that it enters
/// before the momentum or after it; the other is 1, or a layer's ratio.
struct MomentumFactors {
  float factor;
  float weight_decay;
  float scale;
  float momentum;
  float rate;
};
/// w -= rate d; there is no momentum to read.
void plain_step(const MomentumBlock& block, const MomentumFactors& factors);
/// v = mu v + d; w -= rate v.
void momentum_step(const MomentumBlock& block, const MomentumFactors& factors);
/// v = mu v + d; w -= rate (d + mu v).
void nesterov_step(const MomentumBlock& block, const MomentumFactors& factors);

struct AdamBlock {
  std::span<float> value;
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
  std::span<const float> gradient;
};
/// Corrections are multiplied: m^ = correction1 m, sqrt v^ = root_correction2 sqrt v. Taking the
/// root first keeps v^ within float for gradients up to 1e20; v saturates at float's largest value.
struct AdamFactors {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float correction1;
  float root_correction2;
  float epsilon;
  float weight_decay;
  float factor;  ///< of gradients
};
/// The sum of squares of u = m^ / (sqrt v^ + eps) + wd w as this step will make it. Changes
/// nothing.
double adam_sum_of_squares(const AdamBlock& block, const AdamFactors& factors);
/// Advances m and v, then w -= rate u.
void adam_update(const AdamBlock& block, const AdamFactors& factors, float rate);

}  // namespace gradwire::cpu
