#pragma once
// Normal numbers in GPU memory, made there: what the programs that time kernels are fed.

#include <cstddef>
#include <cstdint>

namespace gradwire::bench {

inline constexpr unsigned kFillThreads = 256;

/// Normal numbers (Box and Muller) of standard deviation 1e-3.
static __global__ void fill_normal(float* out, size_t numel, uint32_t seed) {
  const size_t i = size_t{blockIdx.x} * kFillThreads + threadIdx.x;
  if (i < numel) {
    uint64_t z = (i + (uint64_t{seed} << 40)) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    const float u = (static_cast<float>(z >> 40) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(z & 0xFFFFFF) * 0x1p-24f;
    out[i] = 1e-3f * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
  }
}

}  // namespace gradwire::bench
