#pragma once
// The inner loops of tall-skinny products: four vectors' sums stay in registers, so that an element
// is loaded once for all of them.

#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/core/clones.h"

namespace gradwire::cpu::internal {

inline constexpr size_t kLanes = 32;
inline constexpr uint32_t kMostRank = 128;

#define GRADWIRE_INLINE static inline __attribute__((always_inline))

// Sixteen floats: a register, or two or four narrower ones.
using Vector = float __attribute__((vector_size(64)));
inline constexpr size_t kWidth = 16;

GRADWIRE_INLINE void load(const float* from, Vector& v) { __builtin_memcpy(&v, from, sizeof v); }
GRADWIRE_INLINE void store(const Vector& v, float* to) { __builtin_memcpy(to, &v, sizeof v); }

/// lanes[r][l] += x[j] * q[r][j] for j % 32 == l, in order; q has a vector every `stride` floats.
void accumulate(const float* x, const float* q, size_t stride, size_t numel, uint32_t vectors,
                float* lanes);

/// Lanes l and l + 16, l + 8, .., l + 1, as a warp's shuffles add them.
float sum_of_lanes(const float* lanes);

/// out[j] = l[0] * q[0][j] + l[1] * q[1][j] + ..., in order.
void combine(const float* l, const float* q, size_t stride, uint32_t vectors, float* out,
             size_t numel);

}  // namespace gradwire::cpu::internal
