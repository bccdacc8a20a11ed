#pragma once
// Received factors: checks, sums, what they decode to, merges and slices, and the bases that are
// made of them.

#include "gradwire/kernels/ops/lowrank.cuh"
#include "gradwire/kernels/ops/slice.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kFactorPartThreads = 64;
inline constexpr unsigned kMostVectors = 128;

__device__ __forceinline__ uint64_t plain_before(const FactorView& v, uint64_t element) {
  uint64_t before = 0;
  for (uint32_t i = 0; i < v.run_count && v.runs[i].offset < element; ++i) {
    const PlainRun run = v.runs[i];
    before = run.before + smaller(run.numel, element - run.offset);
  }
  return before;
}

/// Factors before the chunk that `element` begins, or before the group's end.
__device__ __forceinline__ uint64_t factors_before(const FactorView& v, FactorSide side,
                                                   uint64_t element) {
  const uint64_t chunks = (v.numel + kChunk - 1) / kChunk;
  return chunks == 0 ? 0 : v.factors(side) * ((element + kChunk - 1) / kChunk) / chunks;
}

__device__ __forceinline__ FactorPart range_of(const FactorView& v, FactorSide side, uint64_t begin,
                                               uint64_t end) {
  FactorPart part;
  part.side = side;
  if (v.plain_of(side) > 0) {
    part.plain_first = plain_before(v, begin);
    part.plain_count = plain_before(v, end) - part.plain_first;
  }
  part.first = factors_before(v, side, begin);
  part.count = factors_before(v, side, end) - part.first;
  return part;
}

/// One block, a thread for each part.
__global__ void __launch_bounds__(kFactorPartThreads)
    open_factors_kernel(DevicePart* table, unsigned count, FactorView v, StepWords* step,
                        bool as_first, FactorPart* parts, uint32_t* covered) {
  const FactorSide side =
      as_first && count > 0 ? static_cast<FactorSide>(table[0].variant) : v.side_now(step);
  __syncthreads();  // the first one may be left out below
  for (unsigned i = threadIdx.x; i < count; i += kFactorPartThreads) {
    const DevicePart part = table[i];
    FactorPart found;
    if (part.body != nullptr) {
      const uint64_t begin = uint64_t{part.first_chunk} * kChunk;
      found = range_of(v, side, begin, begin + part.numel);
      const uint64_t floats = found.plain_count + found.count;
      if (part.variant != static_cast<uint32_t>(side) && part.numel > 0) {
        report_fault(step, i, FaultReason::kVariant);
        table[i] = {};
      } else if (part.body_bytes != floats * sizeof(float)) {
        report_fault(step, i, FaultReason::kBody);
        table[i] = {};
      } else {
        found.body = part.body;
      }
    }
    parts[i] = found;
  }
  __syncthreads();
  if (threadIdx.x != 0) {
    return;
  }
  uint64_t reached = 0;
  for (bool more = true; more && reached < v.numel;) {
    more = false;
    for (unsigned i = 0; i < count; ++i) {
      const uint64_t begin = uint64_t{table[i].first_chunk} * kChunk;
      if (table[i].body != nullptr && begin <= reached && begin + table[i].numel > reached) {
        reached = begin + table[i].numel;
        more = true;
      }
    }
  }
  *covered = reached == v.numel ? 1 : 0;
}

__global__ void __launch_bounds__(kFactorThreads)
    sum_factors_kernel(const FactorPart* parts, unsigned count, float scale, FactorView v,
                       const StepWords* step, float* sums) {
  const FactorSide side = v.side_now(step);
  const uint64_t plain_floats = v.plain_of(side), floats = plain_floats + v.factors(side);
  const uint64_t all = uint64_t{gridDim.x} * kFactorThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kFactorThreads + threadIdx.x; i < floats; i += all) {
    float total = 0.0f;
    for (unsigned p = 0; p < count; ++p) {
      const FactorPart part = parts[p];
      const bool plain = i < plain_floats;
      const uint64_t at = plain ? i - part.plain_first : i - plain_floats - part.first;
      if (part.body != nullptr && at < (plain ? part.plain_count : part.count)) {
        total += load_float<float, Memory::kPayload>(part.body, plain ? at : part.plain_count + at);
      }
    }
    sums[i] = total * scale;
  }
}

template <class T>
__device__ __forceinline__ void put_decoded(std::byte* out, uint64_t at, float x, bool onto) {
  if constexpr (std::is_same_v<T, float>) {
    store_float<float>(out, at, onto ? load_float<float>(out, at) + x : x);
  } else {
    store_float<T>(out, at, x);
  }
}

/// Blocks of rows, then blocks of plain elements, as far as they lie in [begin, end).
template <class T>
__global__ void __launch_bounds__(kFactorThreads)
    decode_factors_kernel(FactorView v, FactorBasis basis, const float* sums, FactorRegion region,
                          std::byte* out, bool onto, SumFaults overflow) {
  const FactorSide side = v.side_now(basis.step);
  const uint64_t plain = v.plain_of(side);
  if (blockIdx.x >= v.row_count) {
    const uint64_t all = uint64_t{gridDim.x - v.row_count} * kFactorThreads;
    for (uint64_t i = uint64_t{blockIdx.x - v.row_count} * kFactorThreads + threadIdx.x;
         i < v.plain; i += all) {
      const PlainRun run = run_of(v, i);
      const uint64_t at = run.offset + i - run.before;
      if (at >= region.begin && at < region.end) {
        const float x = plain > 0 ? sums[i] : 0.0f;
        report_overflow(overflow, __float_as_uint(x) & 0x7FFFFFFFu);
        put_decoded<T>(out, at - region.begin, x, onto);
      }
    }
    return;
  }
  const RowTask task = v.rows[blockIdx.x];
  const LowRankMatrix matrix = v.matrices[task.matrix];
  const uint32_t row = task.first_row + warp_index();
  const uint64_t begin = matrix.offset + uint64_t{row} * matrix.cols;
  if (row >= matrix.rows || begin >= region.end || begin + matrix.cols <= region.begin) {
    return;
  }
  const float* const own = sums + plain;
  const float* const other = basis_of(basis, other_side(side));
  const float* const left = side == FactorSide::kLeft ? own : other;
  const float* const right = side == FactorSide::kLeft ? other : own;
  for (uint32_t first = lane_index(); first < matrix.cols; first += kProductCols * kWarp) {
    float terms[kProductCols];
    product_at(matrix, v.rank, left, right, row, first, terms);
#pragma unroll
    for (unsigned u = 0; u < kProductCols; ++u) {
      const uint32_t j = first + u * kWarp;
      if (j < matrix.cols && begin + j >= region.begin && begin + j < region.end) {
        report_overflow(overflow, __float_as_uint(terms[u]) & 0x7FFFFFFFu);
        put_decoded<T>(out, begin + j - region.begin, terms[u], onto);
      }
    }
  }
}

/// Lane 0 has the sum, in the order of 32 lanes.
__device__ __forceinline__ float warp_dot(const float* a, const float* b, uint32_t length) {
  float sum = 0.0f;
  for (uint32_t i = lane_index(); i < length; i += kWarp) {
    sum += a[i] * b[i];
  }
  return warp_sum(sum);
}

/// The largest magnitude's bits, to every thread of the block.
__device__ inline uint32_t largest_bits(const float* x, uint32_t length) {
  GRADWIRE_SHARED(of_warp, uint32_t[kFactorThreads / kWarp]);
  uint32_t largest = 0;
  for (uint32_t i = threadIdx.x; i < length; i += kFactorThreads) {
    largest = larger(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (lane_index() == 0) {
    of_warp[warp_index()] = largest;
  }
  __syncthreads();
  for (unsigned w = 0; w < kFactorThreads / kWarp; ++w) {
    largest = larger(largest, of_warp[w]);
  }
  __syncthreads();
  return largest;
}

/// The square of a vector's length, to every thread of the block.
__device__ inline float square_of(const float* x, uint32_t length) {
  GRADWIRE_SHARED(square, float);
  if (warp_index() == 0) {
    const float sum = warp_dot(x, x, length);
    if (lane_index() == 0) {
      square = sum;
    }
  }
  __syncthreads();
  const float result = square;
  __syncthreads();
  return result;
}

/// v loses its components along the first `count` vectors.
__device__ inline void project_out(const float* vectors, uint32_t count, float* v,
                                   uint32_t length) {
  GRADWIRE_SHARED(along, float[kMostVectors]);
  for (uint32_t j = warp_index(); j < count; j += kFactorThreads / kWarp) {
    const float component = warp_dot(v, vectors + uint64_t{j} * length, length);
    if (lane_index() == 0) {
      along[j] = component;
    }
  }
  __syncthreads();  // all components are there
  for (uint32_t i = threadIdx.x; i < length; i += kFactorThreads) {
    float sum = along[0] * vectors[i];
    for (uint32_t j = 1; j < count; ++j) {
      sum += along[j] * vectors[uint64_t{j} * length + i];
    }
    v[i] -= sum;
  }
  __syncthreads();
}

/// Factors of a matrix, a block each, copied and made orthonormal: of the step to the next step's,
/// or, where there are words for a fault, of its first round to basis.first.
__global__ void __launch_bounds__(kFactorThreads)
    learn_factors_kernel(const float* sums, const uint32_t* covered, FactorView v,
                         FactorBasis basis, StepWords* faults) {
  const bool leads = blockIdx.x == 0 && threadIdx.x == 0;
  if (*covered == 0) {
    if (faults != nullptr && leads) {
      report_fault(faults, 0, FaultReason::kRegion);
    }
    return;
  }
  const FactorSide side = v.side_now(basis.step);
  const unsigned next = (basis.step->parity & 1) ^ 1;
  const LowRankMatrix matrix = v.matrices[blockIdx.x];
  const uint32_t length = matrix.length(side);
  float* const all = faults != nullptr ? basis.first : next != 0 ? basis.odd : basis.even;
  float* const vectors = all + matrix.at(side);
  for (uint64_t i = threadIdx.x; i < uint64_t{v.rank} * length; i += kFactorThreads) {
    vectors[i] = sums[v.plain_of(side) + matrix.at(side) + i];
  }
  if (leads && faults == nullptr) {
    basis.tags[next] = {basis.step->step + 1, basis.step->epoch};
  }
  __syncthreads();
  for (uint32_t k = 0; k < v.rank; ++k) {
    float* const x = vectors + uint64_t{k} * length;
    for (uint32_t candidate = 0; candidate <= kCandidates + 1; ++candidate) {
      for (uint32_t i = threadIdx.x; i < length && candidate > 0; i += kFactorThreads) {
        x[i] = candidate > kCandidates ? 0.0f : candidate_element(i, k, candidate);
      }
      __syncthreads();
      const uint32_t largest = largest_bits(x, length);
      if (largest == 0 || largest > 0x7F7FFFFFu) {
        continue;
      }
      const float factor = scale_to_one(std::bit_cast<float>(largest));
      for (uint32_t i = threadIdx.x; i < length; i += kFactorThreads) {
        x[i] = factor * x[i];
      }
      __syncthreads();
      const float before = square_of(x, length);
      for (int pass = 0; pass < 2 && k > 0; ++pass) {
        project_out(vectors, k, x, length);
      }
      const float left = square_of(x, length);
      if (left > before * (candidate == 0 ? kDependentShare : kCandidateShare)) {
        const float inverse = 1.0f / sqrtf(left);
        for (uint32_t i = threadIdx.x; i < length; i += kFactorThreads) {
          x[i] = inverse * x[i];
        }
        break;
      }
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kFactorThreads)
    merge_factors_kernel(const FactorPart* parts, unsigned count, float scale, FactorRegion region,
                         FactorView v, const StepWords* step, Seal seal) {
  const FactorSide side = count > 0 ? parts[0].side : v.side_now(step);
  const FactorPart range = range_of(v, side, region.begin, region.end);
  const uint64_t floats = range.plain_count + range.count;
  std::byte* const body = seal.out + sizeof(PayloadHeader);
  bool good = true;
  const uint64_t all = uint64_t{gridDim.x} * kFactorThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kFactorThreads + threadIdx.x; i < floats; i += all) {
    float total = 0.0f;
    for (unsigned p = 0; p < count; ++p) {
      if (parts[p].body != nullptr) {
        total += load_float<float, Memory::kPayload>(parts[p].body, i);
      }
    }
    total *= scale;
    good = good && is_finite(total);
    store_float<float, Memory::kPayload>(body, i, total);
  }
  if (!good) {
    atomicOr(&seal.call->flags, kStatusNonFinite);
  }
  if (is_last_block(&seal.call->arrived) && threadIdx.x == 0) {
    write_sealed_header(seal, factor_header(seal.header, side, floats), take_flags(seal));
  }
}

__global__ void __launch_bounds__(kSliceThreads)
    slice_factors_kernel(const DevicePart* table, const FactorPart* parts, FactorRegion region,
                         FactorView v, PayloadHeader header, std::byte* out) {
  const FactorSide side = parts->side;
  const FactorPart range = range_of(v, side, region.begin, region.end);
  const uint64_t floats = range.plain_count + range.count;
  if (!begin_slice(*table, out, factor_header(header, side, floats))) {
    return;
  }
  const FactorPart part = *parts;
  std::byte* const body = out + sizeof header;
  copy_share(part.body + (range.plain_first - part.plain_first) * sizeof(float), body,
             range.plain_count * sizeof(float));
  copy_share(part.body + (part.plain_count + range.first - part.first) * sizeof(float),
             body + range.plain_count * sizeof(float), range.count * sizeof(float));
}

}  // namespace gradwire::cuda
