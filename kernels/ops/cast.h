#pragma once
// Between float32 and the 16-bit types. Bit for bit what kernels/core/dtype.h defines: nearest
// even, finite values saturate, NaN stays NaN. Nothing here needs aligned memory, because payload
// bytes are read and written in place.

#include <cstdint>
#include <span>

#include "gradwire/kernels/core/tensor.h"

namespace gradwire::cpu {

/// out[i] = source[i] as a float; exact. Sizes must agree.
void widen(ConstTensorView source, std::span<float> out);

/// out[i] = source[i] rounded to out's type. Sizes must agree.
void narrow(std::span<const float> source, TensorView out);

/// Streaming: what is written is not read soon and may go past the caches.
enum class Caching : uint8_t { kNormal, kStreaming };

/// narrow() in one pass with the search for NaN and infinity.
/// @returns false when the source holds one of them.
bool narrow_finite(std::span<const float> source, TensorView out, Caching caching);

/// What a cast with error feedback writes.
struct NarrowedSum {
  TensorView out;
  std::span<float> left;
};

/// out = x rounded, left = x - what out says, for x = g + e, in one pass. `out` is of a 16-bit type,
/// all have one size of at most 4096, and `left` is other memory than g and e; `caching` is about
/// it. @returns false when x holds NaN or infinity.
bool narrow_sum(ConstTensorView g, std::span<const float> e, const NarrowedSum& to,
                Caching caching);

/// out = factor * (the parts widened and added in order, from 0 on). Parts have one dtype and out's
/// size, which is at most 4096. @returns whether all of out is finite.
bool sum_widened(std::span<const ConstTensorView> parts, float factor, std::span<float> out,
                 Caching caching);

}  // namespace gradwire::cpu
