#pragma once
// How fast this machine's memory is, for ratios: three plain loops that move 12 bytes per element.
// Which is fastest depends on the machine (they differ by 1.7 times), so all three are measured.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gradwire::bench {

/// out = a + b / 2.
__attribute__((noinline)) inline void triad(const float* __restrict a, const float* __restrict b,
                                            float* __restrict out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] + 0.5f * b[i];
  }
}

/// The same with stores that pass the caches by, where the machine has them.
__attribute__((noinline)) inline void streaming_triad(const float* __restrict a,
                                                      const float* __restrict b,
                                                      float* __restrict out, size_t count) {
  size_t i = 0;
#if defined(__SSE2__)
  const auto misaligned = (reinterpret_cast<uintptr_t>(out) % 16) / 4;
  for (const size_t head = std::min(count, (4 - misaligned) % 4); i < head; ++i) {
    out[i] = a[i] + 0.5f * b[i];
  }
  const __m128 half = _mm_set1_ps(0.5f);
  for (; i + 4 <= count; i += 4) {
    _mm_stream_ps(out + i, _mm_add_ps(_mm_loadu_ps(a + i), _mm_mul_ps(half, _mm_loadu_ps(b + i))));
  }
  _mm_sfence();
#endif
  for (; i < count; ++i) {
    out[i] = a[i] + 0.5f * b[i];
  }
}

/// out += a.
__attribute__((noinline)) inline void add_in_place(const float* __restrict a, float* __restrict out,
                                                   size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] += a[i];
  }
}

/// Seconds of each loop over the same elements.
struct MemoryTimes {
  double triad = 0, streaming_triad = 0, add = 0;

  /// Bytes per second of the fastest.
  double best_rate(size_t elements) const {
    return 12.0 * static_cast<double>(elements) / std::min({triad, streaming_triad, add});
  }
};

}  // namespace gradwire::bench
