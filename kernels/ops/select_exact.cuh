#pragma once
// The k largest of all, in four launches: guess a range for the k-th from a sample; mark what
// reaches its lower end while the residual is added, and count the marked in bins; list the bin that
// holds the k-th and rank the list; clear the marks below the k-th. Where the guess was wrong, or
// the list has no room for a bin full of equal values, one thread block searches everything.
// With a threshold from the step before there is nothing to search: it is the lower end.

#include "gradwire/kernels/ops/select.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kRankThreads = 1024;
inline constexpr unsigned kRankedAtOnce = kRankThreads;  // keys that are ranked against each other

/// How the marks become the choice.
enum class Refinement : uint32_t {
  kNone,    // all marks stay
  kClear,   // a value is not finite: none does
  kList,    // those of a bin are ranked
  kSearch,  // the marks are of no use
  kFit,     // as many stay as there is room for
};

struct SelectState {
  uint32_t k;          // of this call
  uint32_t low;        // what reaches it is marked; bins begin here
  uint32_t shift;      // bins are 2^shift wide; the last one has all that is above
  uint32_t reuse;      // 1: low is the threshold of the step before
  uint32_t marked;     // elements
  uint32_t largest;    // magnitude
  uint32_t arrived;    // blocks of the kernel that runs
  Refinement refinement;
  uint32_t bin_begin;  // of the k-th, in magnitudes; the end is exclusive
  uint32_t bin_end;
  uint32_t above;      // elements above the bin
  uint32_t listed;
  uint32_t cut;        // the k-th largest: magnitude and element; what is larger or as large and
  uint32_t cut_at;     // before it stays
  uint32_t found;      // 0: fewer than k are not zero
  uint32_t bins[kBins];
};

/// Orders by magnitude, and equal ones with the smaller index first.
__device__ __forceinline__ uint64_t key_of(uint32_t bits, size_t index) {
  return uint64_t{bits} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}

struct ExactArguments {
  SelectMemory memory;
  uint64_t* keys;   // the list
  uint32_t most_keys;
  uint32_t* room;   // of each chunk, where not everything that is marked fits
  SelectState* state;
  ThresholdSlots threshold;  // or nulls
};

__device__ __forceinline__ ThresholdState threshold_read(const ThresholdSlots& threshold) {
  const ThresholdSlot& slot = threshold.slots[*threshold.parity != 0 ? 1 : 0];
  const bool known = slot.step == *threshold.step && slot.epoch == *threshold.epoch;
  return known ? slot.state : ThresholdState{};
}
__device__ __forceinline__ void threshold_write(const ThresholdSlots& threshold,
                                                const ThresholdState& state) {
  threshold.slots[*threshold.parity != 0 ? 0 : 1] = {state, *threshold.step + 1,
                                                       *threshold.epoch};
}

/// Lines of 8 elements that the guess is made from, and the ranks among their elements that enclose
/// the k-th; no lines: everything but zeros is marked.
struct Sample {
  size_t lines;
  size_t stride;
  uint32_t low_rank;
  uint32_t high_rank;  // 0: no upper end
};

/// SelectStages as a kernel takes it.
struct Stages {
  struct Stage {
    uint32_t k;
    Sample sample;
  };
  Stage stage[kMostSelectStages];
  uint32_t count;
  uint32_t last;
  uint32_t period;
  const uint32_t* step;     // or null: stage 0
  const DevicePart* parts;  // or null
  uint32_t* taken;          // or null
};

/// The stage of this call.
__device__ inline Stages::Stage take_stage(const Stages& s) {
  uint32_t number = s.parts != nullptr  ? s.parts[0].variant
                    : s.step != nullptr ? *s.step / s.period
                                        : 0;
  number = number < s.last ? number : s.last;
  if (threadIdx.x == 0 && s.taken != nullptr) {
    *s.taken = number;
  }
  Stages::Stage mine = s.stage[0];
#pragma unroll
  for (uint32_t i = 1; i < kMostSelectStages; ++i) {  // an index would put them all into memory
    if (i <= number && i < s.count) {
      mine = s.stage[i];
    }
  }
  return mine;
}

/// One block: samples, guesses, and makes the state ready.
template <class T>
__global__ void __launch_bounds__(kRankThreads) guess_kernel(ExactArguments a, Stages stages) {
  GRADWIRE_SHARED(bins, uint32_t[kBins]);
  GRADWIRE_SHARED(range, uint32_t[2]);
  const SelectMemory& m = a.memory;
  const Stages::Stage stage = take_stage(stages);
  const Sample& sample = stage.sample;
  for (unsigned i = threadIdx.x; i < kBins; i += blockDim.x) {
    bins[i] = 0;
    a.state->bins[i] = 0;
  }
  const ThresholdState before =
      a.threshold.slots != nullptr ? threshold_read(a.threshold) : ThresholdState{};
  const bool reuse = a.threshold.slots != nullptr && !searches_exactly(before);
  if (threadIdx.x == 0) {
    range[0] = reuse ? magnitude(before.tau) : kSmallestNonZero;
    range[1] = kLargestMagnitude + 1;
  }
  __syncthreads();
  if (!reuse && sample.lines > 0) {
    for (size_t line = threadIdx.x; line < sample.lines; line += blockDim.x) {
      // A hash of the line's number spreads the lines, so that no period of the data is met.
      const uint64_t hash = static_cast<uint32_t>(line) * 2654435761u;
      const size_t jitter = static_cast<size_t>((hash * (sample.stride - kPerThread)) >> 32);
      float x[kPerThread];
      load_sum<T>(m.g != nullptr ? m.g : as_bytes(m.x.get()), m.e.get(),
                  (line * sample.stride + jitter) / kPerThread * kPerThread, m.numel, x);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        atomicAdd(&bins[magnitude(x[i]) >> 20], 1u);
      }
    }
    __syncthreads();
    uint32_t bin;
    uint32_t above;
    if (find_bin(bins, sample.low_rank, bin, above) && bin > 0) {
      range[0] = bin << 20;
    }
    if (sample.high_rank > 0 && find_bin(bins, sample.high_rank, bin, above) && bin < 2039) {
      range[1] = (bin + 1) << 20;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    SelectState& s = *a.state;
    s.k = stage.k;
    s.low = range[0];
    s.shift = 0;
    while (((range[1] - range[0]) >> s.shift) >= kBins - 1) {
      ++s.shift;
    }
    s.reuse = reuse ? 1 : 0;
    s.marked = s.largest = s.arrived = s.listed = s.above = s.found = 0;
    s.refinement = Refinement::kNone;
  }
}

/// One block: what is to become of the marks. `room` is filled where not all fit.
__device__ inline void plan_refinement(const ExactArguments& a, size_t chunks) {
  SelectState& s = *a.state;
  const SelectMemory& m = a.memory;
  if (s.largest > kLargestMagnitude) {
    if (threadIdx.x == 0) {
      s.refinement = Refinement::kClear;
      atomicOr(m.flags, kStatusNonFinite);
    }
    return;
  }
  if (s.reuse != 0) {
    const uint32_t capacity = static_cast<uint32_t>(threshold_capacity(m.numel, s.k));
    if (s.marked <= capacity) {
      return;
    }
    const size_t first = first_chunk_taken(*a.threshold.step, chunks);
    uint32_t before = 0;
    for (size_t begin = 0; begin < chunks; begin += blockDim.x) {
      const size_t i = begin + threadIdx.x;
      const size_t chunk = i < chunks - first ? first + i : i + first - chunks;
      const uint32_t mine = i < chunks ? m.counts[chunk] : 0;
      uint32_t total;
      const uint32_t at = before + block_exclusive_sum(mine, total);
      if (i < chunks) {
        const uint32_t left = at < capacity ? capacity - at : 0;
        a.room[chunk] = mine < left ? mine : left;
      }
      before += total;
    }
    if (threadIdx.x == 0) {
      s.refinement = Refinement::kFit;
    }
    return;
  }
  if (s.marked < s.k) {
    if (threadIdx.x == 0) {
      s.refinement = s.low > kSmallestNonZero ? Refinement::kSearch : Refinement::kNone;
    }
    return;
  }
  uint32_t bin;
  uint32_t above;
  if (find_bin(s.bins, s.k, bin, above)) {
    s.above = above;
    s.bin_begin = s.low + (bin << s.shift);
    s.bin_end = bin == kBins - 1 ? kLargestMagnitude + 1 : s.bin_begin + (1u << s.shift);
    s.refinement = s.bins[bin] <= a.most_keys ? Refinement::kList : Refinement::kSearch;
  }
}

/// x = g + e, marks what reaches the lower end, and counts it in bins. Bytes per element: g and e
/// read, x written, 1/8.
template <class T>
__global__ void __launch_bounds__(kSelectThreads) mark_kernel(ExactArguments a) {
  GRADWIRE_SHARED(bins, uint32_t[kBins]);
  SelectState& s = *a.state;
  const SelectMemory m = settled(a.memory);
  const uint32_t low = s.low;
  const uint32_t shift = s.shift;
  const bool counts = s.reuse == 0;
  if (counts) {
    for (unsigned i = threadIdx.x; i < kBins; i += kSelectThreads) {
      bins[i] = 0;
    }
    __syncthreads();
  }
  uint32_t flags[kRounds];
  uint32_t largest = 0;
#pragma unroll
  for (unsigned round = 0; round < kRounds; ++round) {
    float x[kPerThread];
    make_sum<T>(m, round * kSelectThreads + threadIdx.x, x);
    flags[round] = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const uint32_t bits = magnitude(x[i]);
      largest = bits > largest ? bits : largest;
      if (bits >= low) {
        flags[round] |= 1u << i;
        if (counts) {
          const uint32_t bin = (bits - low) >> shift;
          atomicAdd(&bins[bin < kBins - 1 ? bin : kBins - 1], 1u);
        }
      }
    }
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (lane_index() == 0 && largest > s.largest) {
    atomicMax(&s.largest, largest);
  }
  const uint32_t marked = write_marks(m, flags);  // ends behind a barrier
  if (threadIdx.x == 0 && marked > 0) {
    atomicAdd(&s.marked, marked);
  }
  for (unsigned i = threadIdx.x; counts && i < kBins; i += kSelectThreads) {
    if (bins[i] != 0) {
      atomicAdd(&s.bins[i], bins[i]);
    }
  }
  if (is_last_block(&s.arrived)) {
    plan_refinement(a, gridDim.x);
  }
}

}  // namespace gradwire::cuda
