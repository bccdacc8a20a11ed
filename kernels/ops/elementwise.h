#pragma once
// The few float32 loops that error feedback and sums are made of. Spans of one call have one size.

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire::cpu {

/// out[i] = a[i] + b[i]. `out` may be `a` or `b`.
void add(std::span<const float> a, std::span<const float> b, std::span<float> out);

/// out[i] = a[i] - b[i]. `out` may be `a` or `b`.
void subtract(std::span<const float> a, std::span<const float> b, std::span<float> out);

/// out[i] = a[i] + factor * b[i], the product rounded. `out` may be `a` or `b`.
void add_scaled(std::span<const float> a, float factor, std::span<const float> b,
                std::span<float> out);

/// out[i] = factor * a[i]. `out` may be `a`.
void multiply(std::span<const float> a, float factor, std::span<float> out);

/// The same, and a[i] = 0. `out` is written past the caches: other threads may read it after
/// finish_streaming() (isa.h), which for_each_chunk() calls. @returns whether all of out is finite.
bool multiply_and_clear(std::span<float> a, float factor, std::span<float> out);

/// Asks for the line that `out` ends within, some time before the two above write it: the parts of
/// a line that two chunks share go through the caches.
inline void prefetch_end(std::span<float> out) {
  __builtin_prefetch(out.data() + out.size(), 1);
}

/// out[i] = a[i]. `out` is written past the caches, as above.
void copy_past_caches(std::span<const float> a, std::span<float> out);

/// residual[i] += sum[i] - decoded[i] / scale: what an encoding of scale * sum left out.
void put_back(std::span<const float> sum, std::span<const float> decoded, float scale,
              std::span<float> residual);

/// The largest |x[i]| as its bits, which order like the values; above kFiniteBits: NaN or infinity.
uint32_t max_magnitude_bits(std::span<const float> x);

/// Elements from which on what is written will have left the caches before it is read.
inline constexpr size_t kStreamingNumel = size_t{1} << 20;

inline constexpr uint32_t kFiniteBits = 0x7F7FFFFF;

inline bool all_finite(std::span<const float> x) { return max_magnitude_bits(x) <= kFiniteBits; }

}  // namespace gradwire::cpu
