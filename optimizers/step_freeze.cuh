#pragma once
// What 1-bit Adam and 1-bit LAMB do once, behind the last step before v stays (onebit.cc has the
// formulas): launches of every step, which return at once in all others.

#include "gradwire/optimizers/step_onebit.cuh"

namespace gradwire::cuda {

/// The sum of a block's v, one after another. A warp.
__global__ void __launch_bounds__(kWarp) sum_variances_kernel(StepTables t) {
  const StepBlock block = t.blocks[blockIdx.x];
  const StepItem& item = t.items[block.item];
  if (t.words->freezing == 0 || !is_present(item)) {
    return;
  }
  const size_t begin = size_t{block.place} * kStepBlock;
  const auto count = static_cast<unsigned>(block_end(item, block) - begin);
  double sum = 0.0;
  for (unsigned at = 0; at < count; at += kWarp) {
    const unsigned terms = count - at < kWarp ? count - at : kWarp;
    const float mine = lane_index() < terms
                           ? state_at<true, false>(item, kVariance, begin + at + lane_index())
                           : 0.0f;
    for (unsigned i = 0; i < terms; ++i) {
      sum += static_cast<double>(__shfl_sync(kAllLanes, mine, static_cast<int>(i)));
    }
  }
  if (lane_index() == 0) {
    t.change_squares[blockIdx.x] = sum;
  }
}

/// v where it is not 0 is `least` at the least. By all threads of the block.
template <bool kCodes>
__device__ __forceinline__ void raise_variances(const StepItem& item, const ItemStep& step,
                                                size_t begin, unsigned count, float least) {
  const unsigned end = count + (kCodes ? lane_index() * kPerThread : 0);
#pragma unroll 1
  for (unsigned i = threadIdx.x * kPerThread; i < end; i += kStepThreads * kPerThread) {
    const size_t first = begin + i;
    const StateOfEight<kCodes, false> old(item, kVariance, first);
    float v[kPerThread];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      v[k] = raised_variance(old[k], least);
    }
    store_state<kCodes, false>(item, kVariance, first, v, state_draws<kCodes>(item, step, first));
  }
}

/// The last thread block: momenta of layers are exchanged as if they were of one size.
__device__ inline void take_momentum_scales(const StepTables& t, const OneBitTables& o) {
  for (size_t i = warp_index(); i < t.item_count; i += kStepThreads / kWarp) {
    const StepItem& item = t.items[i];
    const double sum = is_present(item) ? sum_of_item(item, t.value_squares) : 0.0;
    if (lane_index() == 0) {
      t.item_sums[i] = is_present(item) ? std::sqrt(sum / static_cast<double>(item.numel)) : 0.0;
    }
  }
  __syncthreads();
  const double sum = warp_sum_in_order(t.item_sums, t.item_count);
  double sizes = 0.0;  // that are not 0
  for (size_t i = 0; i < t.item_count; ++i) {
    sizes += t.item_sums[i] > 0.0 ? 1.0 : 0.0;
  }
  for (size_t i = threadIdx.x; i < t.item_count; i += kStepThreads) {
    const double size = t.item_sums[i];
    o.layers[i].momentum_scale = size > 0.0 ? nearest_power_of_two(sum / sizes / size) : 1.0f;
  }
}

/// v is raised; v' begins as what memory then holds of v, and momenta are measured.
__global__ void __launch_bounds__(kStepThreads, kBlocksAtOnce)
    freeze_kernel(StepTables t, OneBitTables o, bool layerwise) {
  GRADWIRE_SHARED(of_pieces, double[kPieces]);
  if (t.words->freezing == 0) {
    return;
  }
  const StepBlock block = t.blocks[blockIdx.x];
  const StepItem& item = t.items[block.item];
  const size_t begin = size_t{block.place} * kStepBlock;
  const auto count = static_cast<unsigned>(block_end(item, block) - begin);
  if (is_present(item) && o.rule.variance_floor != 0.0) {
    const float least = least_variance(o.rule, sum_of_item(item, t.change_squares), item.numel);
    const ItemStep& step = t.steps[block.item];
    if (item.codes[kVariance] == nullptr) {
      raise_variances<false>(item, step, begin, count, least);
    } else {
      raise_variances<true>(item, step, begin, count, least);
    }
  }
  if (!layerwise) {
    return;
  }
  if (is_present(item)) {
    __syncthreads();  // codes and scales are there
    for (unsigned i = threadIdx.x; i < count; i += kStepThreads) {
      item.state[kFresh][begin + i] = state_at<true, false>(item, kVariance, begin + i);
    }
    for (unsigned piece = warp_index(); piece * kStepPiece < count; piece += kStepThreads / kWarp) {
      const unsigned first = piece * kStepPiece;
      const unsigned numel = count - first < kStepPiece ? count - first : unsigned{kStepPiece};
      const double sum = chunk_sum_of_squares(
          [&](unsigned i) { return state_at<true, true>(item, kMoment, begin + first + i); },
          numel);
      if (lane_index() == 0) {
        of_pieces[piece] = sum;
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      double sum = 0.0;
      for (unsigned piece = 0; piece * kStepPiece < count; ++piece) {
        sum += of_pieces[piece];
      }
      t.value_squares[blockIdx.x] = sum;
    }
  }
  if (is_last_block(&t.words->arrived)) {
    take_momentum_scales(t, o);
  }
}

}  // namespace gradwire::cuda
