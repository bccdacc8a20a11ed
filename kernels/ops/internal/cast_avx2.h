#pragma once
// Casts with AVX2 and F16C, of whole runs of 16 elements; AVX-512 was no faster, memory being the
// limit. Bits are those of kernels/core/dtype.h.

#include <cstddef>
#include <span>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/core/tensor.h"

#ifdef GRADWIRE_X86

namespace gradwire::cpu {

inline constexpr size_t kCastRun = 16;  // elements; counts below are multiples of it

/// `streaming`: `out` goes past the caches wherever it fills a line of 64 bytes.
/// @returns false when the source holds NaN or infinity.
bool narrow_halves_avx2(const float* source, size_t count, bool streaming, std::byte* out);
bool narrow_brains_avx2(const float* source, size_t count, bool streaming, std::byte* out);
bool copy_floats_avx2(const float* source, size_t count, bool streaming, std::byte* out);

/// A run of narrow_sum() (cast.h), `count` elements.
struct SumRun {
  const std::byte* g;
  DType dtype;  ///< of g
  const float* e;
  std::byte* out;
  DType sent;  ///< of out
  float* left;
  size_t count;
  bool streaming;  ///< left begins a line and goes past the caches
};
/// @returns false when g + e holds NaN or infinity.
bool narrow_sum_avx2(const SumRun& run);

void widen_halves_avx2(const std::byte* source, size_t count, float* out);

/// out = factor * (the parts added in order, from 0 on). Parts have one dtype and out's size, a
/// multiple of 64. @returns whether all of out is finite.
bool sum_widened_avx2(std::span<const std::byte* const> parts, DType dtype, float factor,
                      bool streaming, std::span<float> out);

}  // namespace gradwire::cpu

#endif
