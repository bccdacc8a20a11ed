// Tall-skinny products on the CPU. What a thread takes never changes a sum.

#include "gradwire/kernels/ops/lowrank.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/lowrank_loops.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kTile = 4096;       // elements of x at once
constexpr size_t kStrip = 1024;      // of a row of a product
constexpr uint32_t kBlockRows = 32;  // of a right factor's tile at once
constexpr uint32_t kBlockCols = 256;

using internal::accumulate;
using internal::combine;
using internal::kLanes;
using internal::kMostRank;
using internal::kWidth;
using internal::load;
using internal::store;
using internal::sum_of_lanes;
using internal::Vector;

/// sums[r][j] += x[0][j] * p[r][0] + x[1][j] * p[r][1] + ..., one after the other.
template <int kVectors>
GRADWIRE_INLINE void add_columns(const float* x, const float* p, size_t rows, uint32_t count,
                                 float* sums, size_t cols, size_t numel) {
  size_t j = 0;
  for (; j + kWidth <= numel; j += kWidth) {
    Vector total[kVectors];
    for (int r = 0; r < kVectors; ++r) {
      load(sums + r * cols + j, total[r]);
    }
    for (uint32_t i = 0; i < count; ++i) {
      Vector v;
      load(x + i * kBlockCols + j, v);
      for (int r = 0; r < kVectors; ++r) {
        total[r] += v * p[r * rows + i];
      }
    }
    for (int r = 0; r < kVectors; ++r) {
      store(total[r], sums + r * cols + j);
    }
  }
  for (; j < numel; ++j) {
    for (int r = 0; r < kVectors; ++r) {
      float total = sums[r * cols + j];
      for (uint32_t i = 0; i < count; ++i) {
        total += x[i * kBlockCols + j] * p[r * rows + i];
      }
      sums[r * cols + j] = total;
    }
  }
}

/// A block of rows of a matrix and what they are added to.
struct ColumnSums {
  const float* x;  // count rows, kBlockCols apart
  const float* p;  // rank vectors, `rows` apart
  size_t rows;
  uint32_t count;
  float* sums;  // rank vectors, `cols` apart
  size_t cols, numel;
};

GRADWIRE_CLONES void accumulate_columns(const ColumnSums& c, uint32_t vectors) {
  uint32_t r = 0;
  for (; r + 4 <= vectors; r += 4) {
    add_columns<4>(c.x, c.p + r * c.rows, c.rows, c.count, c.sums + r * c.cols, c.cols, c.numel);
  }
  for (; r < vectors; ++r) {
    add_columns<1>(c.x, c.p + r * c.rows, c.rows, c.count, c.sums + r * c.cols, c.cols, c.numel);
  }
}

/// x = g + e at elements [first, first + numel): in `room`, or where g lies.
std::span<const float> elements(const LowRankInput& input, size_t first, size_t numel, float* room) {
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

/// Calls body(first, last) for runs of rows with about kTile elements.
template <class Body>
void for_each_rows(const LowRankMatrix& matrix, ThreadPool& pool, const Body& body) {
  const size_t rows = std::max<size_t>(1, kTile / matrix.cols);
  const auto run = [&](size_t task) {
    const size_t first = task * rows;
    body(static_cast<uint32_t>(first),
         static_cast<uint32_t>(std::min<size_t>(matrix.rows, first + rows)));
  };
  pool.parallel_for((matrix.rows + rows - 1) / rows, std::cref(run));
}

/// out[j] = left right^T at columns [first, first + out.size()) of `row`.
void product_row(const LowRankMatrix& matrix, uint32_t rank, const FactorPair& factors, uint32_t row,
                 uint32_t first, std::span<float> out) {
  float of_row[kMostRank];
  for (uint32_t r = 0; r < rank; ++r) {
    of_row[r] = factors.left[matrix.left + size_t{r} * matrix.rows + row];
  }
  combine(of_row, factors.right + matrix.right + first, matrix.cols, rank, out.data(), out.size());
}

/// left_over of one row's elements [first, first + x.size()); whether they are finite.
bool subtract_row(const LowRankMatrix& matrix, const LowRankInput& input, const FactorPair& factors,
                  uint32_t row, uint32_t first, std::span<const float> x, float* left_over) {
  alignas(64) float product[kStrip];
  bool finite = true;
  for (size_t begin = 0; begin < x.size(); begin += kStrip) {
    const size_t numel = std::min(kStrip, x.size() - begin);
    const std::span<float> terms(product, numel);
    product_row(matrix, input.rank, factors, row, first + static_cast<uint32_t>(begin), terms);
    const std::span<float> out(left_over + begin, numel);
    subtract(x.subspan(begin, numel), terms, out);
    finite = finite && all_finite(out);
  }
  return finite;
}

}  // namespace

bool multiply_right(const LowRankInput& input, const float* right, float* left,
                    std::span<float> left_over, ThreadPool& pool) {
  std::atomic<bool> finite{true};
  for (const LowRankMatrix& matrix : input.matrices) {
    for_each_rows(matrix, pool, [&](uint32_t begin, uint32_t end) {
      alignas(64) float room[kTile];
      alignas(64) float lanes[kMostRank * kLanes];
      bool good = true;
      const size_t cols = matrix.cols;
      const std::span<const float> block =
          cols <= kTile ? elements(input, matrix.offset + begin * cols, (end - begin) * cols, room)
                        : std::span<const float>();
      good = all_finite(block);
      for (uint32_t row = begin; row < end; ++row) {
        const auto tile_of_row = [&](size_t first) {
          return block.empty() ? elements(input, matrix.offset + row * cols + first,
                                          std::min(kTile, cols - first), room)
                               : block.subspan((row - begin) * cols, cols);
        };
        std::fill_n(lanes, input.rank * kLanes, 0.0f);
        for (size_t first = 0; first < cols; first += kTile) {
          const auto x = tile_of_row(first);
          good = good && (!block.empty() || all_finite(x));
          accumulate(x.data(), right + matrix.right + first, cols, x.size(), input.rank, lanes);
        }
        for (uint32_t r = 0; r < input.rank; ++r) {
          const float sum = sum_of_lanes(lanes + r * kLanes);
          left[matrix.left + size_t{r} * matrix.rows + row] = sum;
          good = good && std::isfinite(sum);
        }
        for (size_t first = 0; first < cols && !left_over.empty(); first += kTile) {
          good = subtract_row(matrix, input, {left, right}, row, static_cast<uint32_t>(first),
                              tile_of_row(first),
                              left_over.data() + matrix.offset + row * cols + first) &&
                 good;
        }
      }
      if (!good) {
        finite.store(false, std::memory_order_relaxed);
      }
    });
  }
  return finite;
}

bool multiply_left(const LowRankInput& input, const float* left, float* right,
                   Workspace& workspace, ThreadPool& pool) {
  std::atomic<bool> finite{true};
  const uint32_t tile_rows = rows_of_tile(input.rank);
  for (const LowRankMatrix& matrix : input.matrices) {
    const uint32_t tiles = (matrix.rows + tile_rows - 1) / tile_rows;
    const uint32_t blocks = (matrix.cols + kBlockCols - 1) / kBlockCols;
    const size_t factor = size_t{input.rank} * matrix.cols;
    Workspace::Frame frame(workspace);
    float* const sums = tiles == 1 ? right + matrix.right : frame.take<float>(tiles * factor).data();
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
        for (uint32_t i = 0; i < count; ++i) {
          float* const to = room + i * kBlockCols;
          const size_t at = matrix.offset + size_t{row + i} * matrix.cols + first_col;
          const auto x = elements(input, at, width, to);
          if (x.data() != to) {
            std::ranges::copy(x, to);
          }
          if (!all_finite(x)) {
            finite.store(false, std::memory_order_relaxed);
          }
        }
        accumulate_columns({room, left + matrix.left + row, matrix.rows, count, mine, matrix.cols,
                            width},
                           input.rank);
      }
    };
    pool.parallel_for(size_t{tiles} * blocks, std::cref(add_tile));
    const auto add_up = [&](size_t task) {
      const size_t begin = task * kTile;
      const std::span<float> out(right + matrix.right + begin, std::min(kTile, factor - begin));
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
    pool.parallel_for((factor + kTile - 1) / kTile, std::cref(add_up));
  }
  return finite;
}

bool subtract_product(const LowRankInput& input, const FactorPair& factors,
                      std::span<float> left_over, ThreadPool& pool) {
  std::atomic<bool> finite{true};
  for (const LowRankMatrix& matrix : input.matrices) {
    for_each_rows(matrix, pool, [&](uint32_t begin, uint32_t end) {
      alignas(64) float room[kTile];
      for (uint32_t row = begin; row < end; ++row) {
        for (size_t first = 0; first < matrix.cols; first += kTile) {
          const size_t at = matrix.offset + size_t{row} * matrix.cols + first;
          const auto x = elements(input, at, std::min(kTile, matrix.cols - first), room);
          if (!subtract_row(matrix, input, factors, row, static_cast<uint32_t>(first), x,
                            left_over.data() + at)) {
            finite.store(false, std::memory_order_relaxed);
          }
        }
      }
    });
  }
  return finite;
}
void write_product(std::span<const LowRankMatrix> matrices, uint32_t rank,
                   const FactorPair& factors, const ProductOutput& to, ThreadPool& pool) {
  const size_t region_end = to.begin + to.out.numel;
  for (const LowRankMatrix& matrix : matrices) {
    for_each_rows(matrix, pool, [&](uint32_t begin, uint32_t end) {
      alignas(64) float product[kStrip];
      for (uint32_t row = begin; row < end; ++row) {
        const size_t at = matrix.offset + size_t{row} * matrix.cols;
        const size_t first = std::max(at, to.begin);
        const size_t last = std::min(at + matrix.cols, region_end);
        for (size_t i = first; i < last; i += kStrip) {
          const size_t numel = std::min(kStrip, last - i);
          const Gradient out = to.out.subview(i - to.begin, numel);
          const bool direct = out.dtype == DType::kFloat32 && !to.onto;
          const std::span<float> terms = direct ? out.as<float>() : std::span(product, numel);
          product_row(matrix, rank, factors, row, static_cast<uint32_t>(i - at), terms);
          if (to.onto) {
            add(out.as<float>(), terms, out.as<float>());
          } else if (!direct) {
            narrow(terms, out);
          }
        }
      }
    });
  }
}

}  // namespace gradwire::cpu
