#pragma once
// The loops of a step over one block of one parameter: fused updates and sums of squares. Each is a
// pure function of its block, so that bits depend neither on threads nor on the instruction set.

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/kernels/core/memory.h"
#include "gradwire/optimizers/step_element.h"

namespace gradwire::cpu {

bool all_finite(std::span<const float> x);

/// Floats as their halves (step_element.h), and back.
void split_halves(std::span<const float> x, std::span<bfloat16> upper, std::span<uint16_t> lower);
void join_halves(std::span<const bfloat16> upper, std::span<const uint16_t> lower,
                 std::span<float> out);

/// Masters of values of 16 bits as others left these (followed()).
void follow_values(std::span<const float> master, ConstTensorView value, std::span<float> out);

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
/// w -= rate d; there is no momentum to read.
void plain_step(const MomentumBlock& block, const MomentumFactors& factors);
/// v = mu v + d; w -= rate v.
void momentum_step(const MomentumBlock& block, const MomentumFactors& factors);
/// v = mu v + d; w -= rate (d + mu v).
void nesterov_step(const MomentumBlock& block, const MomentumFactors& factors);
/// One of the three: the plain one where the block has no momentum.
inline void descend(const MomentumBlock& block, bool nesterov, const MomentumFactors& factors) {
  if (block.momentum.empty()) {
    plain_step(block, factors);
  } else if (nesterov) {
    nesterov_step(block, factors);
  } else {
    momentum_step(block, factors);
  }
}

/// Codes of 8 bits (state_code.h) as floats, and back. One scale for each kCodeBlock elements, the
/// last block may be shorter; `draws` are 16 random bits of each element.
void decode_state(std::span<const uint8_t> codes, std::span<const float> scales, bool has_sign,
                  std::span<float> out);
void encode_state(std::span<const float> x, std::span<const uint16_t> draws, bool has_sign,
                  std::span<uint8_t> codes, std::span<float> scales);

struct AdamBlock {
  std::span<float> value;
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
  std::span<const float> gradient;
};
/// The sum of squares of u = m^ / (sqrt v^ + eps) + wd w as this step will make it. Changes
/// nothing.
double adam_sum_of_squares(const AdamBlock& block, const AdamFactors& factors);
/// Advances m and v, then w -= rate u.
void adam_update(const AdamBlock& block, const AdamFactors& factors, float rate);

/// What a step on exchanged momenta works on; `exp_avg_sq` stays.
struct FrozenBlock {
  std::span<float> value;
  std::span<float> exp_avg;
  std::span<const float> exp_avg_sq;
  std::span<const float> exchanged;
};
/// out = scale (b1 m + (1 - b1) g), of the gradient in `exchanged`, where `out` may be as well.
void local_momentum(const FrozenBlock& block, const FrozenFactors& factors, std::span<float> out);

/// Of u = m^ / (sqrt v^ + eps) + wd w, not finite where an element exchanged is not.
struct FrozenSums {
  double gradient_part = 0.0;  ///< the squares of m^ / (sqrt v^ + eps)
  double update = 0.0;         ///< the squares of u
  float largest_ratio = 0.0f;  ///< of (sqrt v^ + eps) / (sqrt v'^ + eps), v' as this step makes it
};
/// Changes nothing.
FrozenSums frozen_sums(const FrozenBlock& block, std::span<const float> fresh,
                       const FrozenFactors& factors);
/// Advances v', before the momentum.
void fresh_update(const FrozenBlock& block, std::span<float> fresh, const FrozenFactors& factors);
/// Takes the momentum, then w -= rate u.
void frozen_update(const FrozenBlock& block, const FrozenFactors& factors, float rate);

}  // namespace gradwire::cpu
