#pragma once
// The inner loops of tall-skinny products: sums of a few rows and vectors stay in registers, so
// that what is loaded serves all of them. Eight registers of 64 bytes hold sums, also where they
// are pairs.

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

// Of floats anywhere in memory. As a value, which stays in its register: a copy of bytes would be
// made again at every use.
using LooseVector = float __attribute__((vector_size(64), aligned(4), may_alias));

GRADWIRE_INLINE void load(const float* from, Vector& v) {
  v = *reinterpret_cast<const LooseVector*>(from);
}
GRADWIRE_INLINE void store(const Vector& v, float* to) { __builtin_memcpy(to, &v, sizeof v); }

/// lanes[r][l] += x[j] * q[r][j] for j % 32 == l, in order; q has a vector every `stride` floats.
void accumulate(const float* x, const float* q, size_t stride, size_t numel, uint32_t vectors,
                float* lanes);

/// The same for `rows` rows of x, x_stride floats apart, whose lanes follow one another.
void accumulate_rows(const float* x, size_t x_stride, uint32_t rows, const float* q, size_t stride,
                     size_t numel, uint32_t vectors, float* lanes);

/// sums[i] = the lanes of sum i: l and l + 16, l + 8, .., l + 1, as a warp's shuffles add them.
void sum_lanes(const float* lanes, uint32_t count, float* sums);

/// out[j] = l[0] * q[0][j] + l[1] * q[1][j] + ..., in order.
void combine(const float* l, const float* q, size_t stride, uint32_t vectors, float* out,
             size_t numel);

/// The same for `rows` rows: row i has its `vectors` factors at l + i * vectors and its elements at
/// out + i * out_stride.
void combine_rows(const float* l, uint32_t rows, const float* q, size_t stride, uint32_t vectors,
                  float* out, size_t out_stride, size_t numel);

}  // namespace gradwire::cpu::internal
