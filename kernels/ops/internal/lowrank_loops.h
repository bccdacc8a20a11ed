#pragma once
// The inner loops of tall-skinny products: sums of a few rows and vectors stay in registers, so
// that what is loaded serves all of them. One form for each width of registers
// (lowrank_loops_cpu.cc), chosen by isa(): vectors wider than the machine's would go through memory
// at every step. Lanes and the order of every sum are those of lowrank.h in all.

#include <cstddef>
#include <cstdint>

namespace gradwire::cpu::internal {

inline constexpr size_t kLanes = 32;
inline constexpr uint32_t kMostRank = 128;
inline constexpr size_t kWidth = 16;  // floats that the widest form takes at once

/// lanes[r][l] += x[j] * q[r][j] for j % 32 == l, in order; q has a vector every `stride` floats.
void accumulate(const float* x, const float* q, size_t stride, size_t numel, uint32_t vectors,
                float* lanes);

/// The same for `rows` rows of x, x_stride floats apart, whose lanes follow one another.
void accumulate_rows(const float* x, size_t x_stride, uint32_t rows, const float* q, size_t stride,
                     size_t numel, uint32_t vectors, float* lanes);

/// sums[i] = the lanes of sum i: l and l + 16, l + 8, .., l + 1, as a warp's shuffles add them.
void sum_lanes(const float* lanes, uint32_t count, float* sums);

/// A block of rows of a matrix and what they are added to.
struct ColumnSums {
  const float* x;  // count rows, x_stride apart
  size_t x_stride;
  const float* p;  // vectors, `rows` apart
  size_t rows;
  uint32_t count;
  float* sums;  // vectors, `cols` apart
  size_t cols, numel;
};

/// sums[r][j] += x[0][j] * p[r][0] + x[1][j] * p[r][1] + ..., one after the other.
void accumulate_columns(ColumnSums c, uint32_t vectors);

/// out[j] = l[0] * q[0][j] + l[1] * q[1][j] + ..., in order.
void combine(const float* l, const float* q, size_t stride, uint32_t vectors, float* out,
             size_t numel);

/// The same for `rows` rows: row i has its `vectors` factors at l + i * vectors and its elements at
/// out + i * out_stride.
void combine_rows(const float* l, uint32_t rows, const float* q, size_t stride, uint32_t vectors,
                  float* out, size_t out_stride, size_t numel);

}  // namespace gradwire::cpu::internal
