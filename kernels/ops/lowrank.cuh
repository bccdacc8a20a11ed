#pragma once
// Products of matrices with a few vectors. A warp takes a row and its lanes are the lanes of the
// row's sums; a thread takes a column of a tile of rows.

#include "gradwire/kernels/ops/lowrank_cuda.h"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/seal.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kFactorThreads = 256;
inline constexpr unsigned kVectorsAtOnce = 8;
inline constexpr unsigned kTileRows = 64;    // of a tile at once
inline constexpr unsigned kProductCols = 4;  // of a lane, so that a row's factors are loaded once

/// FactorTables as kernels take them.
struct FactorView {
  const LowRankMatrix* matrices;
  const PlainRun* runs;
  const RowTask* rows;
  const TileTask* tiles;
  const uint64_t* tile_sums;
  uint32_t matrix_count, run_count, row_count, rank;
  uint64_t numel, plain, left, right;
  bool follows_step;  // else it is `side`
  FactorSide side;
  bool plain_beside_left;

  __device__ uint64_t factors(FactorSide of) const {
    return of == FactorSide::kLeft ? left : right;
  }
  /// Plain elements of a payload.
  __device__ uint64_t plain_of(FactorSide of) const {
    return of == FactorSide::kRight || plain_beside_left ? plain : 0;
  }
  __device__ FactorSide side_now(const StepWords* step) const {
    return follows_step ? side_of_step(step->step) : side;
  }
};

/// x = g + e. What g was before a velocity and a residual were added is `given`; null: nobody asks.
struct FactorSource {
  const std::byte* g;
  ParityPointer e;
  const std::byte* given;
  DType given_dtype;
};

/// Whether what is left of it may be kept.
__device__ __forceinline__ bool may_be_kept(const FactorSource& source, uint64_t at) {
  if (source.given == nullptr || source.given_dtype == DType::kFloat16) {
    return true;  // float16 has no such values
  }
  const float given = source.given_dtype == DType::kFloat32
                          ? load_float<float>(source.given, at)
                          : load_float<bfloat16>(source.given, at);
  return fabsf(given) <= kMostKept;
}

template <class T>
__device__ __forceinline__ T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
__device__ __forceinline__ T larger(T a, T b) {
  return a < b ? b : a;
}

__device__ __forceinline__ bool is_finite(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7F800000u) != 0x7F800000u;
}

/// What the kernels before this one have flagged.
__device__ __forceinline__ uint32_t flags_of(const CallWords* call) {
  return *static_cast<const volatile uint32_t*>(&call->flags);
}

__device__ __forceinline__ const float* basis_of(const FactorBasis& basis, FactorSide side) {
  if (side == FactorSide::kLeft && basis.first != nullptr) {
    return basis.first;
  }
  const unsigned parity = basis.step->parity & 1;
  const FactorTag tag = basis.tags[parity];
  const float* const drawn = side == FactorSide::kLeft ? basis.drawn_left : basis.drawn_right;
  const float* const learned = parity != 0 ? basis.odd : basis.even;
  return tag.step == basis.step->step && tag.epoch == basis.step->epoch ? learned : drawn;
}

template <class T>
__device__ __forceinline__ float load_element(const std::byte* g, const float* e, uint64_t at) {
  const float x = load_float<T>(g, at);
  return e == nullptr ? x : x + e[at];
}

/// The run that plain element `index` is in.
__device__ __forceinline__ PlainRun run_of(const FactorView& v, uint64_t index) {
  uint32_t first = 0, last = v.run_count;
  while (last - first > 1) {
    const uint32_t middle = (first + last) / 2;
    if (v.runs[middle].before <= index) {
      first = middle;
    } else {
      last = middle;
    }
  }
  return v.runs[first];
}

template <class T>
__global__ void __launch_bounds__(kFactorThreads)
    send_plain_kernel(FactorView v, FactorSource source, std::byte* body, CallWords* call) {
  const float* const e = source.e.get();
  bool good = true;
  const uint64_t all = uint64_t{gridDim.x} * kFactorThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kFactorThreads + threadIdx.x; i < v.plain; i += all) {
    const PlainRun run = run_of(v, i);
    const float x = load_element<T>(source.g, e, run.offset + i - run.before);
    good = good && is_finite(x);
    store_float<float, Memory::kPayload>(body, i, x);
  }
  if (!good) {
    atomicOr(&call->flags, kStatusNonFinite);
  }
}

/// left = M right, a warp for each row.
template <class T>
__global__ void __launch_bounds__(kFactorThreads)
    multiply_right_kernel(FactorView v, FactorSource source, FactorBasis basis, float* factors,
                          CallWords* call) {
  const RowTask task = v.rows[blockIdx.x];
  const LowRankMatrix matrix = v.matrices[task.matrix];
  const uint32_t row = task.first_row + warp_index();
  if (v.side_now(basis.step) != FactorSide::kLeft || row >= matrix.rows) {
    return;
  }
  const float* const e = source.e.get();
  const float* const right = basis_of(basis, FactorSide::kRight) + matrix.right;
  const uint64_t begin = matrix.offset + uint64_t{row} * matrix.cols;
  bool good = true;
  for (uint32_t first = 0; first < v.rank; first += kVectorsAtOnce) {
    const unsigned count = smaller(kVectorsAtOnce, v.rank - first);
    const float* const q = right + uint64_t{first} * matrix.cols;
    float sums[kVectorsAtOnce] = {};
    for (uint32_t j = lane_index(); j < matrix.cols; j += kWarp) {
      const float x = load_element<T>(source.g, e, begin + j);
      good = good && is_finite(x);
#pragma unroll
      for (unsigned r = 0; r < kVectorsAtOnce; ++r) {
        if (r < count) {
          sums[r] += x * q[uint64_t{r} * matrix.cols + j];
        }
      }
    }
#pragma unroll
    for (unsigned r = 0; r < kVectorsAtOnce; ++r) {
      const float sum = warp_sum(sums[r]);
      if (lane_index() == 0 && r < count) {
        factors[matrix.left + uint64_t{first + r} * matrix.rows + row] = sum;
        good = good && is_finite(sum);
      }
    }
  }
  if (!good) {
    atomicOr(&call->flags, kStatusNonFinite);
  }
}

/// The sums over one tile's rows, a thread for each column.
template <class T>
__global__ void __launch_bounds__(kFactorThreads)
    multiply_left_kernel(FactorView v, FactorSource source, FactorBasis basis, float* sums,
                         CallWords* call) {
  GRADWIRE_SHARED(p, float[kVectorsAtOnce][kTileRows]);
  if (v.side_now(basis.step) != FactorSide::kRight) {
    return;
  }
  const TileTask task = v.tiles[blockIdx.x];
  const LowRankMatrix matrix = v.matrices[task.matrix];
  const float* const e = source.e.get();
  const float* const left = basis_of(basis, FactorSide::kLeft) + matrix.left;
  const uint32_t col = task.first_col + threadIdx.x;
  const uint32_t end = smaller(matrix.rows, task.first_row + rows_of_tile(v.rank));
  bool good = true;
  for (uint32_t first = 0; first < v.rank; first += kVectorsAtOnce) {
    const unsigned count = smaller(kVectorsAtOnce, v.rank - first);
    float total[kVectorsAtOnce] = {};
    for (uint32_t begin = task.first_row; begin < end; begin += kTileRows) {
      const unsigned rows = smaller(kTileRows, end - begin);
      for (unsigned i = threadIdx.x; i < kVectorsAtOnce * kTileRows; i += kFactorThreads) {
        const unsigned r = i / kTileRows, at = i % kTileRows;
        p[r][at] = r < count && at < rows ? left[uint64_t{first + r} * matrix.rows + begin + at]
                                          : 0.0f;
      }
      __syncthreads();
      for (unsigned i = 0; i < rows && col < matrix.cols; ++i) {
        const float x = load_element<T>(source.g, e,
                                        matrix.offset + uint64_t{begin + i} * matrix.cols + col);
        good = good && is_finite(x);
#pragma unroll
        for (unsigned r = 0; r < kVectorsAtOnce; ++r) {
          total[r] += x * p[r][i];
        }
      }
      __syncthreads();  // p is done with
    }
#pragma unroll
    for (unsigned r = 0; r < kVectorsAtOnce; ++r) {
      if (r < count && col < matrix.cols) {
        sums[task.sums + uint64_t{first + r} * matrix.cols + col] = total[r];
      }
    }
  }
  if (!good) {
    atomicOr(&call->flags, kStatusNonFinite);
  }
}

/// The matrix whose right factors hold float `index`.
__device__ __forceinline__ uint32_t matrix_of_right(const FactorView& v, uint64_t index) {
  uint32_t first = 0, last = v.matrix_count;
  while (last - first > 1) {
    const uint32_t middle = (first + last) / 2;
    if (v.matrices[middle].right <= index) {
      first = middle;
    } else {
      last = middle;
    }
  }
  return first;
}

__global__ void __launch_bounds__(kFactorThreads)
    add_tiles_kernel(FactorView v, const float* sums, const StepWords* step, float* factors,
                     CallWords* call) {
  if (v.side_now(step) != FactorSide::kRight) {
    return;
  }
  bool good = true;
  const uint64_t all = uint64_t{gridDim.x} * kFactorThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kFactorThreads + threadIdx.x; i < v.right; i += all) {
    const uint32_t m = matrix_of_right(v, i);
    const LowRankMatrix matrix = v.matrices[m];
    const uint64_t factor = uint64_t{v.rank} * matrix.cols;
    const float* from = sums + v.tile_sums[m] + (i - matrix.right);
    float total = 0.0f;
    for (uint32_t row = 0; row < matrix.rows; row += rows_of_tile(v.rank), from += factor) {
      total += *from;
    }
    factors[i] = total;
    good = good && is_finite(total);
  }
  if (!good) {
    atomicOr(&call->flags, kStatusNonFinite);
  }
}

/// terms[u] = row of left right^T at columns first + 32 u, as far as there are any.
__device__ __forceinline__ void product_at(const LowRankMatrix& matrix, uint32_t rank,
                                           const float* left, const float* right, uint32_t row,
                                           uint32_t first, float (&terms)[kProductCols]) {
  const float* l = left + matrix.left + row;
  const float* q = right + matrix.right + first;
#pragma unroll
  for (unsigned u = 0; u < kProductCols; ++u) {
    terms[u] = first + u * kWarp < matrix.cols ? *l * q[u * kWarp] : 0.0f;
  }
  for (uint32_t r = 1; r < rank; ++r) {
    l += matrix.rows;
    q += matrix.cols;
    const float of_row = *l;
#pragma unroll
    for (unsigned u = 0; u < kProductCols; ++u) {
      if (first + u * kWarp < matrix.cols) {
        terms[u] += of_row * q[u * kWarp];
      }
    }
  }
}

/// What is left of x, behind the factors' kernels: nothing where they met what is not finite. The
/// blocks behind those of rows clear plain elements.
template <class T>
__global__ void __launch_bounds__(kFactorThreads)
    subtract_product_kernel(FactorView v, FactorSource source, FactorBasis basis,
                            const float* factors, ParityPointer left_over, CallWords* call,
                            bool in_place) {
  float* const out = left_over.get();
  if (flags_of(call) != 0) {
    return;
  }
  if (blockIdx.x >= v.row_count) {
    const uint64_t all = uint64_t{gridDim.x - v.row_count} * kFactorThreads;
    for (uint64_t i = uint64_t{blockIdx.x - v.row_count} * kFactorThreads + threadIdx.x;
         i < v.plain; i += all) {
      const PlainRun run = run_of(v, i);
      out[run.offset + i - run.before] = 0.0f;
    }
    return;
  }
  const RowTask task = v.rows[blockIdx.x];
  const LowRankMatrix matrix = v.matrices[task.matrix];
  const uint32_t row = task.first_row + warp_index();
  if (row >= matrix.rows) {
    return;
  }
  const FactorSide side = v.side_now(basis.step);
  const float* const other = basis_of(basis, other_side(side));
  const float* const left = side == FactorSide::kLeft ? factors : other;
  const float* const right = side == FactorSide::kLeft ? other : factors;
  const float* const e = source.e.get();
  const uint64_t begin = matrix.offset + uint64_t{row} * matrix.cols;
  bool good = true;
  for (uint32_t first = lane_index(); first < matrix.cols; first += kProductCols * kWarp) {
    float terms[kProductCols];
    product_at(matrix, v.rank, left, right, row, first, terms);
#pragma unroll
    for (unsigned u = 0; u < kProductCols; ++u) {
      const uint32_t j = first + u * kWarp;
      if (j < matrix.cols) {
        const float rest = load_element<T>(source.g, e, begin + j) - terms[u];
        out[begin + j] = rest;
        good = good && is_finite(rest) && may_be_kept(source, begin + j);
      }
    }
  }
  if (!good && !in_place) {
    atomicOr(&call->flags, kStatusNonFinite);
  }
}

/// The header of a payload of the step's side with so many floats.
__device__ __forceinline__ PayloadHeader factor_header(PayloadHeader header, FactorSide side,
                                                       uint64_t floats) {
  header.variant = static_cast<uint32_t>(side);
  header.bytes = sizeof header + floats * sizeof(float);
  return header;
}

/// Ends a payload: its factors, or zeros all over where something was not finite, and its header.
__global__ void __launch_bounds__(kFactorThreads)
    finish_factors_kernel(FactorView v, const StepWords* step, const float* factors,
                          std::byte* body, Seal seal) {
  const FactorSide side = v.side_now(step);
  const bool flagged = flags_of(seal.call) != 0;
  const uint64_t plain = v.plain_of(side), floats = plain + v.factors(side);
  const uint64_t all = uint64_t{gridDim.x} * kFactorThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kFactorThreads + threadIdx.x; i < floats; i += all) {
    if (flagged || i >= plain) {
      store_float<float, Memory::kPayload>(body, i, flagged ? 0.0f : factors[i - plain]);
    }
  }
  if (is_last_block(&seal.call->arrived) && threadIdx.x == 0) {
    write_sealed_header(seal, factor_header(seal.header, side, floats), take_flags(seal));
  }
}

}  // namespace gradwire::cuda
