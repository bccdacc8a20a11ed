#pragma once
// The second half of the selection of the k largest: the exact cut, and the marks it leaves.

#include "gradwire/kernels/ops/select_exact.cuh"

namespace gradwire::cuda {

/// One block: the `rank`-th largest of `count` keys, 1 <= rank <= count; for all threads.
__device__ inline uint64_t ranked_key(const uint64_t* keys, uint32_t count, uint32_t rank) {
  GRADWIRE_SHARED(bins, uint32_t[kBins]);
  GRADWIRE_SHARED(result, uint64_t);
  GRADWIRE_SHARED(left, uint32_t);
  if (count <= kRankedAtOnce) {
    GRADWIRE_SHARED(held, uint64_t[kRankedAtOnce]);
    const uint64_t mine = threadIdx.x < count ? keys[threadIdx.x] : 0;
    held[threadIdx.x] = mine;
    __syncthreads();
    uint32_t larger = 0;
    for (uint32_t i = 0; i < count; ++i) {
      larger += held[i] > mine ? 1 : 0;
    }
    if (threadIdx.x < count && larger == rank - 1) {  // keys differ
      result = mine;
    }
    __syncthreads();
    return result;
  }
  uint64_t prefix = 0;
  for (int shift = 52; shift > -11; shift -= 11) {  // 63 bits: five times 11, then 8
    const int width = shift < 0 ? 11 + shift : 11;
    const int low = shift < 0 ? 0 : shift;
    for (unsigned i = threadIdx.x; i < kBins; i += blockDim.x) {
      bins[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
      if (keys[i] >> (low + width) == prefix) {
        atomicAdd(&bins[keys[i] >> low & ((1u << width) - 1)], 1u);
      }
    }
    __syncthreads();
    uint32_t bin;
    uint32_t above;
    if (find_bin(bins, rank, bin, above)) {
      result = prefix << width | bin;
      left = rank - above;
    }
    __syncthreads();
    prefix = result;
    rank = left;
    __syncthreads();
  }
  return prefix;
}

/// One block, everything: the cut that leaves the k largest of x. Slow, and right whatever x is.
__device__ inline void search_all(const ExactArguments& a) {
  GRADWIRE_SHARED(bins, uint32_t[kBins]);
  GRADWIRE_SHARED(next, uint32_t[2]);
  const SelectMemory& m = a.memory;
  const float* const x = m.x.get();
  uint32_t prefix = 0;
  uint32_t rank = a.state->k;
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 20 : pass == 1 ? 9 : 0;
    const int width = pass == 2 ? 9 : 11;
    for (unsigned i = threadIdx.x; i < kBins; i += blockDim.x) {
      bins[i] = 0;
    }
    __syncthreads();
    for (size_t i = threadIdx.x; i < m.numel; i += blockDim.x) {
      const uint32_t bits = magnitude(x[i]);
      if (static_cast<uint64_t>(bits) >> (shift + width) == prefix) {
        atomicAdd(&bins[bits >> shift & ((1u << width) - 1)], 1u);
      }
    }
    __syncthreads();
    uint32_t bin;
    uint32_t above;
    if (find_bin(bins, rank, bin, above)) {
      next[0] = prefix << width | bin;
      next[1] = rank - above;
    }
    __syncthreads();
    prefix = next[0];
    rank = next[1];
    __syncthreads();
  }
  SelectState& s = *a.state;
  uint32_t before = 0;  // equal to the k-th
  for (size_t begin = 0; begin < m.numel && before < rank; begin += blockDim.x) {
    const size_t i = begin + threadIdx.x;
    const uint32_t mine = i < m.numel && magnitude(x[i]) == prefix ? 1 : 0;
    uint32_t total;
    const uint32_t at = before + block_exclusive_sum(mine, total);
    if (mine != 0 && at + 1 == rank) {
      s.cut = prefix;
      s.cut_at = static_cast<uint32_t>(i);
      s.found = prefix != 0 ? 1 : 0;
    }
    before += total;
  }
}

/// Lists the bin that holds the k-th; the last block ranks the list, which finds the cut.
__global__ void __launch_bounds__(kRankThreads) rank_kernel(ExactArguments a, size_t chunks) {
  SelectState& s = *a.state;
  const Refinement refinement = s.refinement;
  if (refinement != Refinement::kList && refinement != Refinement::kSearch) {
    return;
  }
  if (refinement == Refinement::kList) {
    const uint32_t begin = s.bin_begin;
    const uint32_t end = s.bin_end;
    const float* const x = a.memory.x.get();
    const size_t words = chunks * kMaskBytes / sizeof(uint32_t);
    for (size_t word = blockIdx.x * size_t{kRankThreads} + threadIdx.x; word < words;
         word += size_t{gridDim.x} * kRankThreads) {
      auto flags = load_word<uint32_t>(a.memory.mask + word * sizeof(uint32_t));
      for (; flags != 0; flags &= flags - 1) {
        const size_t i = word * 32 + static_cast<unsigned>(__ffs(static_cast<int>(flags))) - 1;
        const uint32_t bits = magnitude(x[i]);
        if (bits >= begin && bits < end) {
          a.keys[atomicAdd(&s.listed, 1u)] = key_of(bits, i);
        }
      }
    }
  }
  if (!is_last_block(&s.arrived)) {
    return;
  }
  if (refinement == Refinement::kSearch) {
    search_all(a);
    return;
  }
  const uint64_t key = ranked_key(a.keys, s.listed, s.k - s.above);
  if (threadIdx.x == 0) {
    s.cut = static_cast<uint32_t>(key >> 32);
    s.cut_at = 0xFFFFFFFFu - static_cast<uint32_t>(key);
    s.found = 1;
  }
}

/// The state that the next step begins with.
__device__ inline void carry_threshold(const ExactArguments& a) {
  const SelectState& s = *a.state;
  const ThresholdState before = threshold_read(a.threshold);
  if (s.refinement == Refinement::kClear) {
    threshold_write(a.threshold, before);
  } else if (s.reuse != 0) {
    threshold_write(a.threshold, after_reuse(before, s.marked, s.k));
  } else {
    const bool found = s.found != 0;
    threshold_write(a.threshold, after_exact_search(found ? __uint_as_float(s.cut) : 0.0f,
                                                    found ? s.k : 0, s.k));
  }
}

/// Leaves the marks that are chosen, counts them, and says where their entries lie.
__global__ void __launch_bounds__(kSelectThreads, 4) trim_kernel(ExactArguments a) {
  const SelectMemory& m = a.memory;
  SelectState& s = *a.state;
  const Refinement refinement = s.refinement;
  if (refinement != Refinement::kNone) {
    const uint32_t cut = s.found != 0 ? s.cut : 0;
    const uint32_t cut_at = s.cut_at;
    const uint32_t room = refinement == Refinement::kFit ? a.room[blockIdx.x] : 0;
    const float* const x = m.x.get();
    uint32_t taken = 0;
    uint32_t flags[kRounds] = {};
#pragma unroll
    for (unsigned round = 0; round < kRounds; ++round) {
      const unsigned byte = round * kSelectThreads + threadIdx.x;
      const uint32_t first = (blockIdx.x * kMaskBytes + byte) * kPerThread;
      const auto keep = [&](uint32_t bits, int bit) {
        const bool as_large = bits == cut && cut != 0 && first + bit <= cut_at;
        flags[round] |= bits > cut || as_large ? 1u << bit : 0u;
      };
      if (refinement == Refinement::kList) {
        for_each_marked(m, blockIdx.x, byte, keep);
      } else if (refinement == Refinement::kSearch) {
#pragma unroll 1
        for (int bit = 0; bit < kPerThread && first + bit < m.numel; ++bit) {
          keep(magnitude(x[first + bit]), bit);
        }
      } else if (room > 0) {  // the same for all threads
        auto marked = static_cast<uint32_t>(m.mask[blockIdx.x * kMaskBytes + byte]);
        uint32_t in_round;
        uint32_t at = taken + block_exclusive_sum(static_cast<uint32_t>(__popc(marked)), in_round);
        for (; marked != 0 && at < room; ++at) {
          flags[round] |= marked & (0u - marked);
          marked &= marked - 1;
        }
        taken += in_round;
      }
    }
    write_marks(m, flags);
  }
  if (is_last_block(&s.arrived)) {
    write_before(m, gridDim.x);
    if (threadIdx.x == 0 && a.threshold.slots != nullptr) {
      carry_threshold(a);
    }
  }
}

}  // namespace gradwire::cuda
