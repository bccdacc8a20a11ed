// Tall-skinny products on the CPU. What a thread takes never changes a sum.

#include "gradwire/kernels/ops/lowrank.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/lowrank_loops.h"

namespace gradwire::cpu {
namespace {

constexpr uint32_t kRightRows = 4;   // of a left factor at once
constexpr size_t kRightCols = 2048;  // of them at once
constexpr uint32_t kBlockRows = 32;  // of a right factor's tile at once, and of an expansion
constexpr uint32_t kBlockCols = 256;
constexpr size_t kExpandedVectors = 4096;  // floats of a tile of vectors that is expanded
constexpr size_t kExpandedCols = 1024;     // of it at most
constexpr size_t kAddedUp = 4096;
constexpr size_t kLookedAt = 4096;  // elements at once

using internal::accumulate_columns;
using internal::accumulate_rows;
using internal::combine_rows;
using internal::kLanes;
using internal::kMostRank;
using internal::kWidth;
using internal::sum_lanes;

/// x = g + e at elements [first, first + numel): in `room`, or where g lies.
std::span<const float> elements(const LowRankInput& input, size_t first, size_t numel,
                                float* room) {
  const std::span<float> x(room, numel);
  const ConstTensorView g = input.g.subview(first, numel);
  if (g.dtype == DType::kFloat32 && input.e.empty()) {
    return g.as<float>();
  }
  if (g.dtype == DType::kFloat32) {
    add(g.as<float>(), input.e.subspan(first, numel), x);
    return x;
  }
  widen(g, x);
  if (!input.e.empty()) {
    add(x, input.e.subspan(first, numel), x);
  }
  return x;
}

/// Some elements of rows that follow one another.
struct Rows {
  const float* data;
  size_t stride;
};
struct RowsAt {
  size_t first;  // of the first row's elements in the group
  uint32_t count;
  size_t numel, cols;
};

/// x = g + e of them: in `room`, `room_stride` apart, or where g lies.
Rows rows_of(const LowRankInput& input, const RowsAt& at, float* room, size_t room_stride) {
  if (input.g.dtype == DType::kFloat32 && input.e.empty()) {
    return {input.g.as<float>().data() + at.first, at.cols};
  }
  for (uint32_t i = 0; i < at.count; ++i) {
    elements(input, at.first + i * at.cols, at.numel, room + i * room_stride);
  }
  return {room, room_stride};
}

/// Calls body(first, last) for runs of rows: as many as an expansion takes, fewer of long ones, so
/// that they stay in the second cache.
template <class Body>
void for_each_rows(const LowRankMatrix& matrix, ThreadPool& pool, const Body& body) {
  constexpr size_t kElements = size_t{1} << 16;
  const size_t rows =
      std::clamp<size_t>(kElements / matrix.cols / kRightRows * kRightRows, kRightRows, kBlockRows);
  const auto run = [&](size_t task) {
    const size_t first = task * rows;
    body(static_cast<uint32_t>(first),
         static_cast<uint32_t>(std::min<size_t>(matrix.rows, first + rows)));
  };
  pool.parallel_for((matrix.rows + rows - 1) / rows, std::cref(run));
}

/// Rows [begin, end) of left right^T, at most kBlockRows, in tiles whose vectors stay in the first
/// cache (they are copied: columns that are powers of two apart would share its lines). `place(row,
/// first, numel)` says where a row's elements belong, or nothing for where they do not go as they
/// are; use(row, first, terms) is given them, wherever they lie.
template <class Place, class Use>
void expand(const LowRankMatrix& matrix, uint32_t rank, const FactorPair& factors, uint32_t begin,
            uint32_t end, const Place& place, const Use& use) {
  alignas(64) float of_rows[kBlockRows * kMostRank];
  alignas(64) float vectors[kExpandedVectors + kMostRank * kWidth];
  alignas(64) float product[kRightRows * kExpandedCols];
  for (uint32_t r = 0; r < rank; ++r) {
    const float* const from = factors.left + matrix.left + size_t{r} * matrix.rows;
    for (uint32_t row = begin; row < end; ++row) {
      of_rows[(row - begin) * rank + r] = from[row];
    }
  }
  const size_t width =
      std::clamp<size_t>(kExpandedVectors / rank / kWidth * kWidth, kWidth, kExpandedCols);
  for (size_t first = 0; first < matrix.cols; first += width) {
    const size_t numel = std::min<size_t>(width, matrix.cols - first);
    for (uint32_t r = 0; r < rank; ++r) {
      std::copy_n(factors.right + matrix.right + size_t{r} * matrix.cols + first, numel,
                  vectors + r * width);
    }
    for (uint32_t row = begin; row < end; row += kRightRows) {
      const uint32_t count = std::min(kRightRows, end - row);
      float* const direct = place(row, count, first, numel);
      float* const to = direct != nullptr ? direct : product;
      const size_t stride = direct != nullptr ? matrix.cols : width;
      combine_rows(of_rows + (row - begin) * rank, count, vectors, width, rank, to, stride, numel);
      for (uint32_t i = 0; i < count; ++i) {
        use(row + i, first, std::span<float>(to + i * stride, numel));
      }
    }
  }
}

/// left_over = x - left right^T in rows [begin, end); whether it is finite.
bool subtract_rows(const LowRankMatrix& matrix, const LowRankInput& input,
                   const FactorPair& factors, uint32_t begin, uint32_t end,
                   std::span<float> left_over) {
  alignas(64) float room[kExpandedCols];
  bool finite = true;
  const auto nowhere = [](uint32_t, uint32_t, size_t, size_t) -> float* { return nullptr; };
  expand(matrix, input.rank, factors, begin, end, nowhere,
         [&](uint32_t row, size_t first, std::span<const float> terms) {
           const size_t at = matrix.offset + size_t{row} * matrix.cols + first;
           const std::span<float> out = left_over.subspan(at, terms.size());
           subtract(elements(input, at, terms.size(), room), terms, out);
           finite = finite && all_finite(out);
         });
  return finite;
}

}  // namespace

bool multiply_right(const LowRankInput& input, const float* right, float* left,
                    std::span<float> left_over, ThreadPool& pool) {
  std::atomic<bool> finite{true};
  const uint32_t rank = input.rank;
  for (const LowRankMatrix& matrix : input.matrices) {
    for_each_rows(matrix, pool, [&](uint32_t begin, uint32_t end) {
      alignas(64) float room[kRightRows * kRightCols];
      alignas(64) float lanes[kRightRows * kMostRank * kLanes];
      bool good = true;
      const size_t cols = matrix.cols;
      for (uint32_t row = begin; row < end; row += kRightRows) {
        const uint32_t count = std::min(kRightRows, end - row);
        std::fill_n(lanes, size_t{count} * rank * kLanes, 0.0f);
        for (size_t first = 0; first < cols; first += kRightCols) {
          const size_t numel = std::min(kRightCols, cols - first);
          const size_t at = matrix.offset + row * cols + first;
          const Rows x = rows_of(input, {at, count, numel, cols}, room, kRightCols);
          // What is not finite here makes its sums so: they are looked at in its place.
          accumulate_rows(x.data, x.stride, count, right + matrix.right + first, cols, numel, rank,
                          lanes);
        }
        for (uint32_t i = 0; i < count; ++i) {
          float sums[kMostRank];
          sum_lanes(lanes + size_t{i} * rank * kLanes, rank, sums);
          good = good && all_finite({sums, rank});
          for (uint32_t r = 0; r < rank; ++r) {
            left[matrix.left + size_t{r} * matrix.rows + row + i] = sums[r];
          }
        }
      }
      if (!left_over.empty()) {
        good = subtract_rows(matrix, input, {left, right}, begin, end, left_over) && good;
      }
      if (!good) {
        finite.store(false, std::memory_order_relaxed);
      }
    });
  }
  return finite;
}

bool multiply_left(const LowRankInput& input, const float* left, float* right, Workspace& workspace,
                   ThreadPool& pool) {
  std::atomic<bool> finite{true};
  const uint32_t tile_rows = rows_of_tile(input.rank);
  for (const LowRankMatrix& matrix : input.matrices) {
    const uint32_t tiles = (matrix.rows + tile_rows - 1) / tile_rows;
    const uint32_t blocks = (matrix.cols + kBlockCols - 1) / kBlockCols;
    const size_t factor = size_t{input.rank} * matrix.cols;
    Workspace::Frame frame(workspace);
    float* const sums =
        tiles == 1 ? right + matrix.right : frame.take<float>(tiles * factor).data();
    const auto add_tile = [&](size_t task) {
      alignas(64) float room[kBlockRows * kBlockCols];
      const size_t tile = task / blocks, first_col = task % blocks * kBlockCols;
      const size_t width = std::min<size_t>(kBlockCols, matrix.cols - first_col);
      float* const mine = sums + tile * factor + first_col;
      for (uint32_t r = 0; r < input.rank; ++r) {
        std::fill_n(mine + size_t{r} * matrix.cols, width, 0.0f);
      }
      const auto end = static_cast<uint32_t>(std::min<size_t>(matrix.rows, (tile + 1) * tile_rows));
      for (auto row = static_cast<uint32_t>(tile * tile_rows); row < end; row += kBlockRows) {
        const uint32_t count = std::min(kBlockRows, end - row);
        const size_t at = matrix.offset + size_t{row} * matrix.cols + first_col;
        const Rows x = rows_of(input, {at, count, width, matrix.cols}, room, kBlockCols);
        for (uint32_t i = 0; i < count; ++i) {
          if (!all_finite({x.data + i * x.stride, width})) {
            finite.store(false, std::memory_order_relaxed);
          }
        }
        accumulate_columns({x.data, x.stride, left + matrix.left + row, matrix.rows, count, mine,
                            matrix.cols, width},
                           input.rank);
      }
    };
    pool.parallel_for(size_t{tiles} * blocks, std::cref(add_tile));
    const auto add_up = [&](size_t task) {
      const size_t begin = task * kAddedUp;
      const std::span<float> out(right + matrix.right + begin, std::min(kAddedUp, factor - begin));
      if (tiles > 1) {
        std::ranges::fill(out, 0.0f);
        for (uint32_t tile = 0; tile < tiles; ++tile) {
          add(out, {sums + tile * factor + begin, out.size()}, out);
        }
      }
      if (!all_finite(out)) {
        finite.store(false, std::memory_order_relaxed);
      }
    };
    pool.parallel_for((factor + kAddedUp - 1) / kAddedUp, std::cref(add_up));
  }
  return finite;
}

bool may_be_kept(std::span<const LowRankMatrix> matrices, ConstTensorView g, ThreadPool& pool) {
  if (g.dtype == DType::kFloat16) {  // has no such values
    return true;
  }
  std::atomic<bool> small{true};
  for (const LowRankMatrix& matrix : matrices) {
    const size_t numel = size_t{matrix.rows} * matrix.cols;
    for_each_chunk(pool, (numel + kLookedAt - 1) / kLookedAt, [&](size_t i) {
      alignas(64) float room[kLookedAt];
      const size_t first = i * kLookedAt;
      const LowRankInput input{g, {}, {}, 0};
      const std::span<const float> values =
          elements(input, matrix.offset + first, std::min(kLookedAt, numel - first), room);
      if (max_magnitude_bits(values) > std::bit_cast<uint32_t>(kMostKept)) {
        small.store(false, std::memory_order_relaxed);
      }
    });
  }
  return small;
}

bool subtract_product(const LowRankInput& input, const FactorPair& factors,
                      std::span<float> left_over, ThreadPool& pool) {
  std::atomic<bool> finite{true};
  for (const LowRankMatrix& matrix : input.matrices) {
    for_each_rows(matrix, pool, [&](uint32_t begin, uint32_t end) {
      if (!subtract_rows(matrix, input, factors, begin, end, left_over)) {
        finite.store(false, std::memory_order_relaxed);
      }
    });
  }
  return finite;
}

bool write_product(std::span<const LowRankMatrix> matrices, uint32_t rank,
                   const FactorPair& factors, const ProductOutput& to, ThreadPool& pool) {
  const bool as_it_is = to.out.dtype == DType::kFloat32 && !to.onto;
  std::atomic<bool> finite{true};
  for (const LowRankMatrix& matrix : matrices) {
    for_each_rows(matrix, pool, [&](uint32_t begin, uint32_t end) {
      const auto element = [&](uint32_t row, size_t col) {
        return matrix.offset + size_t{row} * matrix.cols + col;
      };
      const auto place = [&](uint32_t row, uint32_t, size_t first, size_t) -> float* {
        return as_it_is ? to.out.as<float>().data() + element(row, first) : nullptr;
      };
      bool good = true;
      expand(matrix, rank, factors, begin, end, place,
             [&](uint32_t row, size_t first, std::span<const float> terms) {
               good = good && all_finite(terms);
               const Gradient out = to.out.subview(element(row, first), terms.size());
               if (terms.data() == out.data) {
                 return;  // they were written there
               }
               if (to.onto) {
                 add(out.as<float>(), terms, out.as<float>());
               } else {
                 narrow(terms, out);
               }
             });
      if (!good) {
        finite.store(false, std::memory_order_relaxed);
      }
    });
  }
  return finite;
}

}  // namespace gradwire::cpu
