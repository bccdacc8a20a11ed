// The CPU's loops: plain, so that the compiler vectorises them for each instruction set.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/optimizers/state_code.h"
#include "gradwire/optimizers/step.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kLanes = 32;
constexpr size_t kChunk = 1024;  // kStepPiece is as large
// Above the largest finite float there is no need to look at a sum in float; below this one,
// squares may have been subnormal and lost bits.
constexpr float kSmallestSum = 0x1p-100f;

template <class T>
GRADWIRE_ELEMENT T lane_sum_of_squares(const float* x, size_t count) {
  T lane[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) {
      const T term = static_cast<T>(x[i + l]);
      lane[l] += term * term;
    }
  }
  for (size_t l = 0; i + l < count; ++l) {
    const T term = static_cast<T>(x[i + l]);
    lane[l] += term * term;
  }
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) {
      lane[l] += lane[l + width];
    }
  }
  return lane[0];
}

GRADWIRE_ELEMENT double chunk_sum_of_squares(const float* x, size_t count) {
  const float sum = lane_sum_of_squares<float>(x, count);
  if (sum >= kSmallestSum && sum <= std::numeric_limits<float>::max()) [[likely]] {
    return static_cast<double>(sum);
  }
  return lane_sum_of_squares<double>(x, count);
}

template <bool kSigned>
GRADWIRE_ELEMENT void decode_block(const uint8_t* __restrict codes, float scale, size_t count,
                                   float* __restrict out) {
  const uint32_t base = code_base<kSigned>(scale);
  for (size_t i = 0; i < count; ++i) {
    out[i] = decoded_state<kSigned>(codes[i], base);
  }
}

template <bool kSigned>
GRADWIRE_ELEMENT void encode_block(const float* __restrict x, const uint16_t* __restrict draws,
                                   float scale, size_t count, uint8_t* __restrict codes) {
  const uint32_t base = code_base<kSigned>(scale);
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(encoded_state<kSigned>(x[i], base, draws[i]));
  }
}

GRADWIRE_ELEMENT uint32_t largest_magnitude(const float* data, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(data[i]) & 0x7FFFFFFFu);
  }
  return largest;
}

}  // namespace

GRADWIRE_CLONES
bool all_finite(std::span<const float> x) {
  return largest_magnitude(x.data(), x.size()) < 0x7F800000u;
}

GRADWIRE_CLONES
void split_halves(std::span<const float> x, std::span<bfloat16> upper, std::span<uint16_t> lower) {
  const float* __restrict const from = x.data();
  bfloat16* __restrict const high = upper.data();
  uint16_t* __restrict const low = lower.data();
  const size_t count = x.size();
  for (size_t i = 0; i < count; ++i) {
    high[i].bits = upper_half(from[i]);
    low[i] = lower_half(from[i]);
  }
}

GRADWIRE_CLONES
void join_halves(std::span<const bfloat16> upper, std::span<const uint16_t> lower,
                 std::span<float> out) {
  const bfloat16* __restrict const high = upper.data();
  const uint16_t* __restrict const low = lower.data();
  float* __restrict const to = out.data();
  const size_t count = out.size();
  for (size_t i = 0; i < count; ++i) {
    to[i] = joined_halves(high[i].bits, low[i]);
  }
}

void follow_values(std::span<const float> master, ConstTensorView value, std::span<float> out) {
  dispatch(value.dtype, [&]<class T>() {
    if constexpr (sizeof(T) == 2) {
      const std::span<const T> written = value.as<T>();
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = followed(master[i], written[i]);
      }
    }
  });
}

GRADWIRE_CLONES
void decode_state(std::span<const uint8_t> codes, std::span<const float> scales, bool has_sign,
                  std::span<float> out) {
  for (size_t begin = 0, b = 0; begin < out.size(); begin += kCodeBlock, ++b) {
    const size_t count = std::min(kCodeBlock, out.size() - begin);
    if (has_sign) {
      decode_block<true>(codes.data() + begin, scales[b], count, out.data() + begin);
    } else {
      decode_block<false>(codes.data() + begin, scales[b], count, out.data() + begin);
    }
  }
}

GRADWIRE_CLONES
void encode_state(std::span<const float> x, std::span<const uint16_t> draws, bool has_sign,
                  std::span<uint8_t> codes, std::span<float> scales) {
  for (size_t begin = 0, b = 0; begin < x.size(); begin += kCodeBlock, ++b) {
    const size_t count = std::min(kCodeBlock, x.size() - begin);
    const float* const from = x.data() + begin;
    scales[b] = scale_of_codes(largest_magnitude(from, count));
    if (has_sign) {
      encode_block<true>(from, draws.data() + begin, scales[b], count, codes.data() + begin);
    } else {
      encode_block<false>(from, draws.data() + begin, scales[b], count, codes.data() + begin);
    }
  }
}

GRADWIRE_CLONES
double sum_of_squares(std::span<const float> x) {
  double sum = 0.0;
  for (size_t begin = 0; begin < x.size(); begin += kChunk) {
    sum += chunk_sum_of_squares(x.data() + begin, std::min(kChunk, x.size() - begin));
  }
  return sum;
}

GRADWIRE_CLONES
double decayed_sum_of_squares(std::span<const float> value, std::span<const float> gradient,
                              float factor, float weight_decay) {
  double sum = 0.0;
  float change[kChunk];
  for (size_t begin = 0; begin < value.size(); begin += kChunk) {
    const float* const w = value.data() + begin;
    const float* const g = gradient.data() + begin;
    const size_t count = std::min(kChunk, value.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      change[i] = decayed_element(w[i], g[i], factor, weight_decay);
    }
    sum += chunk_sum_of_squares(change, count);
  }
  return sum;
}

GRADWIRE_CLONES
void plain_step(const MomentumBlock& block, const MomentumFactors& factors) {
  float* __restrict const w = block.value.data();
  const float* __restrict const g = block.gradient.data();
  const size_t count = block.value.size();
  const MomentumFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    w[i] = plain_element(w[i], g[i], f);
  }
}

GRADWIRE_CLONES
void momentum_step(const MomentumBlock& block, const MomentumFactors& factors) {
  float* __restrict const w = block.value.data();
  float* __restrict const v = block.momentum.data();
  const float* __restrict const g = block.gradient.data();
  const size_t count = block.value.size();
  const MomentumFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    const MomentumElement next = momentum_element(w[i], v[i], g[i], f);
    v[i] = next.momentum;
    w[i] = next.value;
  }
}

GRADWIRE_CLONES
void nesterov_step(const MomentumBlock& block, const MomentumFactors& factors) {
  float* __restrict const w = block.value.data();
  float* __restrict const v = block.momentum.data();
  const float* __restrict const g = block.gradient.data();
  const size_t count = block.value.size();
  const MomentumFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    const MomentumElement next = nesterov_element(w[i], v[i], g[i], f);
    v[i] = next.momentum;
    w[i] = next.value;
  }
}

GRADWIRE_CLONES
double adam_sum_of_squares(const AdamBlock& block, const AdamFactors& factors) {
  const AdamFactors f = factors;
  double sum = 0.0;
  float update[kChunk];
  for (size_t begin = 0; begin < block.value.size(); begin += kChunk) {
    const float* const w = block.value.data() + begin;
    const float* const m = block.exp_avg.data() + begin;
    const float* const v = block.exp_avg_sq.data() + begin;
    const float* const g = block.gradient.data() + begin;
    const size_t count = std::min(kChunk, block.value.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      update[i] = adam_element(w[i], m[i], v[i], g[i], f).update;
    }
    sum += chunk_sum_of_squares(update, count);
  }
  return sum;
}

GRADWIRE_CLONES
void adam_update(const AdamBlock& block, const AdamFactors& factors, float rate) {
  float* __restrict const w = block.value.data();
  float* __restrict const m = block.exp_avg.data();
  float* __restrict const v = block.exp_avg_sq.data();
  const float* __restrict const g = block.gradient.data();
  const size_t count = block.value.size();
  const AdamFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    const AdamElement next = adam_element(w[i], m[i], v[i], g[i], f);
    m[i] = next.exp_avg;
    v[i] = next.exp_avg_sq;
    w[i] -= rate * next.update;
  }
}

GRADWIRE_CLONES
void local_momentum(const FrozenBlock& block, const FrozenFactors& factors, std::span<float> out) {
  const float* const m = block.exp_avg.data();
  const float* const v = block.exp_avg_sq.data();
  const float* const g = block.exchanged.data();
  float* const to = out.data();
  const size_t count = out.size();
  const FrozenFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    to[i] = local_momentum_element(m[i], v[i], g[i], f);
  }
}

GRADWIRE_CLONES
FrozenSums frozen_sums(const FrozenBlock& block, std::span<const float> fresh,
                       const FrozenFactors& factors) {
  const FrozenFactors f = factors;
  FrozenSums sums;
  uint32_t largest = 0;  // floats from 0 on are ordered as their bits are
  float part[kChunk], update[kChunk];
  for (size_t begin = 0; begin < block.value.size(); begin += kChunk) {
    const float* const w = block.value.data() + begin;
    const float* const last = block.exp_avg.data() + begin;
    const float* const v = block.exp_avg_sq.data() + begin;
    const float* const x = block.exchanged.data() + begin;
    const float* const old = fresh.data() + begin;
    const size_t count = std::min(kChunk, block.value.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      const float m = frozen_momentum(x[i], v[i], f);
      const float denominator = frozen_denominator(v[i], f);
      part[i] = (m * f.correction1) / denominator;
      update[i] = part[i] + f.weight_decay * w[i];
      const float now = std::sqrt(fresh_element(last[i], m, old[i], f));
      const float ratio = denominator / (now * f.fresh_root_correction2 + f.epsilon);
      largest = std::max(largest, std::bit_cast<uint32_t>(ratio));
    }
    sums.gradient_part += chunk_sum_of_squares(part, count);
    sums.update += chunk_sum_of_squares(update, count);
  }
  sums.largest_ratio = std::bit_cast<float>(largest);
  return sums;
}

GRADWIRE_CLONES
void fresh_update(const FrozenBlock& block, std::span<float> fresh, const FrozenFactors& factors) {
  const float* const last = block.exp_avg.data();
  const float* const v = block.exp_avg_sq.data();
  const float* const x = block.exchanged.data();
  float* __restrict const to = fresh.data();
  const size_t count = fresh.size();
  const FrozenFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    to[i] = fresh_element(last[i], frozen_momentum(x[i], v[i], f), to[i], f);
  }
}

GRADWIRE_CLONES
void frozen_update(const FrozenBlock& block, const FrozenFactors& factors, float rate) {
  float* __restrict const w = block.value.data();
  float* __restrict const m = block.exp_avg.data();
  const float* __restrict const v = block.exp_avg_sq.data();
  const float* __restrict const x = block.exchanged.data();
  const size_t count = block.value.size();
  const FrozenFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    const float next = frozen_momentum(x[i], v[i], f);
    const float part = (next * f.correction1) / frozen_denominator(v[i], f);
    m[i] = next;
    w[i] -= rate * (part + f.weight_decay * w[i]);
  }
}

}  // namespace gradwire::cpu
