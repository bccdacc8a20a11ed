#pragma once
// The k largest of every segment: three rounds narrow down the magnitude of each segment's k-th by 11,
// 11 and 9 bits. In a round all chunks count their elements in the bins of their segments, then a
// block per segment finds the bin that holds the k-th.

#include "gradwire/kernels/ops/select.cuh"
#include "gradwire/kernels/ops/select_segments_cuda.h"

namespace gradwire::cuda {

/// What is known of a segment's k-th largest.
struct SegmentState {
  uint32_t prefix;  // its leading bits; behind the last round all of them
  uint32_t rank;    // its rank among the elements with this prefix
  uint32_t cut_at;  // behind the last round: of those equal to it, the last element that is kept
};

/// What all segments share.
struct SegmentWords {
  uint32_t arrived;
  uint32_t nonfinite;
};

struct SegmentArguments {
  SelectMemory memory;
  const uint64_t* ends;
  size_t segments;
  uint64_t first;
  double density;
  SegmentWords* words;
  SegmentState* states;
  uint32_t* bins;  // kBins of each segment
};

/// Elements [begin, end) of those that are here.
struct SegmentPart {
  uint64_t begin;
  uint64_t end;
};

__device__ __forceinline__ SegmentPart part_of(const SegmentArguments& a, size_t segment) {
  const uint64_t begin = segment > 0 ? a.ends[segment - 1] : 0;
  const uint64_t last = a.first + a.memory.numel;
  const uint64_t from = begin > a.first ? begin : a.first;
  const uint64_t to = a.ends[segment] < last ? a.ends[segment] : last;
  return from < to ? SegmentPart{from - a.first, to - a.first} : SegmentPart{0, 0};
}

/// The segment of an element of the group.
__device__ __forceinline__ size_t segment_at(const SegmentArguments& a, uint64_t element) {
  size_t low = 0;
  for (size_t high = a.segments - 1; low < high;) {
    const size_t middle = (low + high) / 2;
    if (a.ends[middle] > element) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Which bits a round looks at.
__device__ __forceinline__ int shift_in(int round) { return round == 0 ? 20 : round == 1 ? 9 : 0; }
__device__ __forceinline__ int width_in(int round) { return round == 2 ? 9 : 11; }

/// A block per segment: empty bins, and the rank to look for.
__global__ void __launch_bounds__(kSelectThreads) begin_segments_kernel(SegmentArguments a) {
  const size_t segment = blockIdx.x;
  for (unsigned i = threadIdx.x; i < kBins; i += kSelectThreads) {
    a.bins[segment * kBins + i] = 0;
  }
  if (threadIdx.x == 0) {
    const SegmentPart part = part_of(a, segment);
    const uint64_t numel = part.end - part.begin;
    const auto kept = static_cast<uint64_t>(ceil(a.density * static_cast<double>(numel)));
    a.states[segment] = {
        0, static_cast<uint32_t>(kept < 1 ? 1 : kept > numel ? numel : kept), 0};
    if (segment == 0) {
      *a.words = {0, 0};
    }
  }
}

/// A block per chunk: counts elements by the round's bits, of those whose bits before are the k-th's.
/// The first round makes x = g + e.
template <class T, bool kFirst>
__global__ void __launch_bounds__(kSelectThreads) count_in_segments_kernel(SegmentArguments a,
                                                                            int round) {
  GRADWIRE_SHARED(bins, uint32_t[kBins]);
  GRADWIRE_SHARED(segments, size_t[2]);
  const SelectMemory m = settled(a.memory);
  const uint64_t chunk_begin = blockIdx.x * kSelectChunk;
  if (threadIdx.x < 2) {
    const uint64_t left = m.numel - chunk_begin;
    const uint64_t last = chunk_begin + (left < kSelectChunk ? left : kSelectChunk) - 1;
    segments[threadIdx.x] = segment_at(a, a.first + (threadIdx.x == 0 ? chunk_begin : last));
  }
  for (unsigned i = threadIdx.x; i < kBins; i += kSelectThreads) {
    bins[i] = 0;
  }
  __syncthreads();
  const bool alone = segments[0] == segments[1];
  const int shift = shift_in(round);
  const int width = width_in(round);
  uint32_t largest = 0;
#pragma unroll 1
  for (unsigned at = 0; at < kRounds; ++at) {
    const unsigned byte = at * kSelectThreads + threadIdx.x;
    const uint64_t begin = chunk_begin + byte * kPerThread;
    if (begin >= m.numel) {
      break;
    }
    float x[kPerThread];
    if constexpr (kFirst) {
      make_sum<T>(m, byte, x);
    } else {
      load_floats<float>(as_bytes(m.x.get()), begin, m.numel, x);
    }
    size_t segment = alone ? segments[0] : segment_at(a, a.first + begin);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (begin + i >= m.numel) {
        break;
      }
      while (a.first + begin + i >= a.ends[segment]) {
        ++segment;
      }
      const uint32_t bits = magnitude(x[i]);
      largest = bits > largest ? bits : largest;
      if (static_cast<uint64_t>(bits) >> (shift + width) == (kFirst ? 0 : a.states[segment].prefix)) {
        uint32_t* const to = alone ? bins : a.bins + segment * kBins;
        atomicAdd(&to[bits >> shift & ((1u << width) - 1)], 1u);
      }
    }
  }
  if (kFirst && largest > kLargestMagnitude) {
    atomicOr(&a.words->nonfinite, 1u);
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; alone && i < kBins; i += kSelectThreads) {
    if (bins[i] != 0) {
      atomicAdd(&a.bins[segments[0] * kBins + i], bins[i]);
    }
  }
}

/// A block per segment: the bin that holds its k-th, and empty bins again. The last round looks for
/// the last of the equal ones that is kept.
__global__ void __launch_bounds__(kSelectThreads) cut_segments_kernel(SegmentArguments a, int round) {
  GRADWIRE_SHARED(ties, uint32_t);
  const SegmentPart part = part_of(a, blockIdx.x);
  if (part.begin == part.end) {
    return;
  }
  SegmentState& state = a.states[blockIdx.x];
  uint32_t* const bins = a.bins + blockIdx.x * size_t{kBins};
  uint32_t bin;
  uint32_t above;
  if (find_bin(bins, state.rank, bin, above)) {
    ties = bins[bin];
    state.prefix = state.prefix << width_in(round) | bin;
    state.rank -= above;
    state.cut_at = 0xFFFFFFFFu;
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kBins; i += kSelectThreads) {
    bins[i] = 0;
  }
  if (round < 2 || ties == state.rank || state.prefix == 0) {
    return;
  }
  const float* const x = a.memory.x.get();
  const uint32_t rank = state.rank;
  uint32_t before = 0;
  for (uint64_t begin = part.begin; begin < part.end && before < rank; begin += kSelectThreads) {
    const uint64_t i = begin + threadIdx.x;
    const uint32_t mine = i < part.end && magnitude(x[i]) == state.prefix ? 1 : 0;
    uint32_t total;
    const uint32_t at = before + block_exclusive_sum(mine, total);
    if (mine != 0 && at + 1 == rank) {
      state.cut_at = static_cast<uint32_t>(i);
    }
    before += total;
  }
}

/// A block per chunk marks what is larger than the k-th of its segment, or as large and not behind it.
__global__ void __launch_bounds__(kSelectThreads) mark_in_segments_kernel(SegmentArguments a) {
  const SelectMemory& m = a.memory;
  const bool finite = a.words->nonfinite == 0;
  const float* const x = m.x.get();
  uint32_t flags[kRounds] = {};
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    const uint64_t begin = blockIdx.x * kSelectChunk + (round * kSelectThreads + threadIdx.x) * kPerThread;
    if (!finite || begin >= m.numel) {
      continue;
    }
    size_t segment = segment_at(a, a.first + begin);
#pragma unroll 1
    for (int bit = 0; bit < kPerThread && begin + bit < m.numel; ++bit) {
      const uint64_t i = begin + bit;
      while (a.first + i >= a.ends[segment]) {
        ++segment;
      }
      const SegmentState& state = a.states[segment];
      const uint32_t bits = magnitude(x[i]);
      const bool as_large = bits == state.prefix && bits != 0 && i <= state.cut_at;
      flags[round] |= bits > state.prefix || as_large ? 1u << bit : 0u;
    }
  }
  write_marks(m, flags);
  if (is_last_block(&a.words->arrived)) {
    write_before(m, gridDim.x);
    if (threadIdx.x == 0 && !finite) {
      atomicOr(m.flags, kStatusNonFinite);
    }
  }
}

}  // namespace gradwire::cuda
