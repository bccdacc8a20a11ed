#pragma once
// A thread block takes a block of a parameter, or several parameters of which a warp each. Sums are
// the CPU's: 1024 elements in the 32 lanes of a warp, then in order, in double.

#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/norms_cuda.h"
#include "gradwire/kernels/ops/ordered_sum.cuh"
#include "gradwire/optimizers/parameter_set.h"
#include "gradwire/optimizers/step_cuda.h"
#include "gradwire/optimizers/step_gradient.cuh"
#include "gradwire/optimizers/step_memory.cuh"
#include "gradwire/optimizers/step_options.cuh"
#include "gradwire/optimizers/step_state.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kStepThreads = 256;
inline constexpr unsigned kBlocksAtOnce = 4;     // of a multiprocessor: 64 registers a thread
inline constexpr unsigned kBeginThreads = 1024;  // of one thread block
inline constexpr unsigned kItemsOfBlock = kStepThreads / kWarp;
inline constexpr unsigned kPieces = kStepBlock / kStepPiece;
static_assert(kStepPiece == kNormChunk);

/// What a first pass sums the squares of, beside the values: gradients (kClip: of all parameters,
/// and no values), gradients with decay, Adam's update.
enum class Change { kClip, kGradient, kDecayed, kUpdate };

/// 0: as the compiler chooses, which within that bound would spill a register for sm_90.
template <Change kChange, bool kReads>
inline constexpr unsigned kMeasuresAtOnce = kReads&& kChange == Change::kClip ? 0 : kBlocksAtOnce;

/// Keeps the first block in which any thread has seen a gradient that is not finite.
__device__ __forceinline__ void note_finite(const StepTables& t, uint32_t largest) {
  constexpr uint32_t kLargestFinite = 0x7F7FFFFF;
  if (__syncthreads_or(largest > kLargestFinite ? 1 : 0) != 0 && threadIdx.x == 0) {
    atomicMax(&t.words->bad_block, ~static_cast<uint32_t>(blockIdx.x));
  }
}

__device__ __forceinline__ uint32_t magnitude_bits(float x) {
  return __float_as_uint(x) & 0x7FFFFFFFu;
}

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a < b ? b : a; }

/// The sums of squares of a block. `alone`: gradients of parameters that do not adapt are looked at
/// for what is not finite. Changes no state.
template <Change kChange, bool kReads, bool kCodes = false>
__global__ void __launch_bounds__(kStepThreads, kMeasuresAtOnce<kChange, kReads>)
    measure_kernel(StepTables t, bool layerwise, bool alone) {
  GRADWIRE_SHARED(of_pieces, double[2][kPieces]);
  GRADWIRE_SHARED(room, typename Gradients<kReads>::Room);
  const StepBlock block = t.blocks[blockIdx.x];
  const ReadOnce<kReads, StepItem> item = t.items[block.item];
  const bool sums = kChange == Change::kClip || (layerwise && item.adapt);
  const bool going = kChange == Change::kClip || t.words->going == kStep;
  const bool readable = kReads ? is_present(item) : item.gradient != nullptr;
  if (!going || !readable || !(sums || alone)) {
    return;
  }
  const size_t begin = size_t{block.place} * kStepBlock;
  const auto count = static_cast<unsigned>(block_end(item, block) - begin);
  Gradients<kReads> gradients(room);
  uint32_t largest = 0;
  if (!sums) {
    gradients.for_each_window(item, begin, count, [&](unsigned window, unsigned here) {
      for (unsigned i = threadIdx.x * kPerThread; i < here; i += kStepThreads * kPerThread) {
        const typename Gradients<kReads>::Eight g(gradients, item, begin + window + i, i);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
          largest = larger(largest, magnitude_bits(g[k]));
        }
      }
    });
    note_finite(t, largest);
    return;
  }
  const bool fresh = kChange != Change::kClip && t.steps[block.item].fresh != 0;
  const ReadOnce<kReads, AdamFactors> adam = t.steps[block.item].adam;
  const float factor = t.words->factor;
  gradients.for_each_window(item, begin, count, [&](unsigned window, unsigned here) {
    for (unsigned piece = warp_index(); piece < kPieces; piece += kStepThreads / kWarp) {
      const unsigned first = piece * kStepPiece;
      if (first >= here) {
        break;
      }
      const size_t at = begin + window + first;
      const unsigned numel = here - first < kStepPiece ? here - first : unsigned{kStepPiece};
      const auto change = [&](unsigned i) {
        const float g = gradients.at(item, at + i, first + i);
        largest = larger(largest, magnitude_bits(g));
        if constexpr (kChange == Change::kDecayed) {
          return decayed_element(value_at(item, fresh, at + i), g, factor, item.weight_decay);
        } else if constexpr (kChange == Change::kUpdate) {
          return adam_element(value_at(item, fresh, at + i),
                              state_at<kCodes, true>(item, 0, at + i),
                              state_at<kCodes, false>(item, 1, at + i), g, adam)
              .update;
        } else {
          return g;
        }
      };
      const double of_change = chunk_sum_of_squares(change, numel);
      double of_values = 0.0;
      if constexpr (kChange != Change::kClip) {
        of_values =
            chunk_sum_of_squares([&](unsigned i) { return value_at(item, fresh, at + i); }, numel);
      }
      if (lane_index() == 0) {
        of_pieces[0][window / kStepPiece + piece] = of_values;
        of_pieces[1][window / kStepPiece + piece] = of_change;
      }
    }
  });
  note_finite(t, largest);  // a barrier: all pieces are there
  if (threadIdx.x < 2) {
    double sum = 0.0;
    for (unsigned piece = 0; piece * kStepPiece < count; ++piece) {
      sum += of_pieces[threadIdx.x][piece];
    }
    // By itself: GCC 12 evaluates the emulator's index in one branch of a conditional only.
    double* const sums_of = threadIdx.x == 0 ? t.value_squares : t.change_squares;
    sums_of[blockIdx.x] = sum;
  }
}

/// The sum of an item's blocks' sums, in order; for all lanes of the warp.
__device__ __forceinline__ double sum_of_item(const StepItem& item, const double* sums) {
  return warp_sum_in_order(sums + item.first_block, item.block_count);
}

/// One thread block: the sum of squares of all gradients, or with `slices` of those that this rank
/// counts, for the first warp.
__device__ inline double sum_of_items(const StepTables& t, bool slices = false) {
  for (size_t i = warp_index(); i < t.item_count; i += kBeginThreads / kWarp) {
    const double sum = is_present(t.items[i]) ? sum_of_item(t.items[i], t.change_squares) : 0.0;
    if (lane_index() == 0) {
      t.item_sums[i] = slices ? counted_squares(t.items[i], sum) : sum;
    }
  }
  __syncthreads();
  return warp_index() == 0 ? warp_sum_in_order(t.item_sums, t.item_count) : 0.0;
}

/// One thread block: what ranks add up for the norm of all gradients.
__global__ void __launch_bounds__(kBeginThreads) sum_of_slices_kernel(StepTables t) {
  const double squares = sum_of_items(t, true);
  if (threadIdx.x == 0) {
    t.slice_sums[0] = squares;
  }
}

/// One thread block, and a barrier: a fault where a gradient comes from payloads that cannot be
/// read; `unread` where none can.
__device__ inline void refuse_payloads(const StepTables& t, bool reads,
                                       StepFault unread = StepFault::kNotReading) {
  const auto refused = [&](size_t i) {
    const PayloadSource* const source = t.items[i].source;
    return source != nullptr && (!reads || source->usable == 0);
  };
  int any = 0;
  for (size_t i = threadIdx.x; i < t.item_count; i += kBeginThreads) {
    any |= refused(i) ? 1 : 0;
  }
  if (__syncthreads_or(any) != 0 && threadIdx.x == 0 && t.words->going != 0) {
    uint32_t first = 0;
    while (!refused(first)) {
      ++first;
    }
    t.words->going = 0;
    t.words->fault = reads ? StepFault::kPayloads : unread;
    t.words->fault_item = first;
  }
  __syncthreads();
}

/// One thread block: what the step does, but for rates that follow norms.
__global__ void __launch_bounds__(kBeginThreads) begin_step_kernel(StepTables t, StepRequest r) {
  const bool clips = r.rule.max_grad_norm != 0.0;
  const bool slices = clips && r.options.on_device.add_up != nullptr;
  double squares = 0.0;
  if (slices) {
    squares = t.slice_sums[0];
  } else if (clips) {
    squares = sum_of_items(t);
  }
  if (threadIdx.x == 0) {
    take_options(*t.words, r.options, squares, r.rule.max_grad_norm);
    t.words->elsewhere = slices && !(squares <= std::numeric_limits<double>::max()) ? 1 : 0;
  }
  refuse_payloads(t, r.reads);
  const float factor = t.words->factor;
  for (size_t i = threadIdx.x; i < t.item_count; i += kBeginThreads) {
    t.steps[i].steps = t.counts[i];
    t.steps[i].fresh = t.counts[i] == 0 ? 1 : 0;
    if (r.rule.form == StepForm::kAdam) {
      t.steps[i].adam = adam_factors(t.items[i], t.counts[i], factor);
    }
  }
}

/// A warp for each parameter: what ranks add up for its rate, and whether this one keeps the step
/// from being made.
__global__ void __launch_bounds__(kStepThreads)
    squares_of_slices_kernel(StepTables t, bool layerwise) {
  const size_t i = size_t{blockIdx.x} * kItemsOfBlock + warp_index();
  if (i < t.item_count) {
    const StepItem& item = t.items[i];
    const bool sums = layerwise && item.adapt && is_present(item) && t.words->going != 0;
    const double values = sums ? sum_of_item(item, t.value_squares) : 0.0;
    const double change = sums ? sum_of_item(item, t.change_squares) : 0.0;
    if (lane_index() == 0) {
      t.slice_sums[2 * i] = counted_squares(item, values);
      t.slice_sums[2 * i + 1] = counted_squares(item, change);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const bool stops = t.words->going == 0 || t.words->bad_block != 0;
    t.slice_sums[2 * t.item_count] = stops ? 1.0 : 0.0;
  }
}

/// Behind an exchange that failed: the next step begins anew.
__global__ void forget_step_kernel(OptimizerWords* words) { words->bad_block = 0; }

/// One thread, once all blocks have been looked at: whether the step is made.
__device__ inline void end_decision(const StepTables& t, OptimizerWords& words, bool skips,
                                    bool summed) {
  const bool elsewhere = words.elsewhere != 0 || (summed && t.slice_sums[2 * t.item_count] != 0.0);
  if (words.going != 0 && (words.bad_block != 0 || elsewhere)) {
    words.going = 0;
    words.skipped += skips ? 1 : 0;
    if (!skips) {
      words.fault = StepFault::kNonFinite;
      words.fault_item = words.bad_block != 0 ? t.blocks[~words.bad_block].item : kElsewhere;
    }
  }
  words.bad_block = 0;
}

/// Rates, a warp for each parameter. The last thread block decides whether the step is made and
/// counts it. `summed`: squares_of_slices_kernel's are the sums over ranks.
__global__ void __launch_bounds__(kStepThreads)
    decide_kernel(StepTables t, StepRule rule, bool skips, bool summed) {
  OptimizerWords& words = *t.words;
  const size_t i = size_t{blockIdx.x} * kItemsOfBlock + warp_index();
  if (i < t.item_count && is_present(t.items[i])) {
    const StepItem& item = t.items[i];
    LayerNorms norms{0.0, 0.0};
    if (rule.layerwise && item.adapt && summed) {
      norms = {std::sqrt(t.slice_sums[2 * i]), std::sqrt(t.slice_sums[2 * i + 1])};
    } else if (rule.layerwise && item.adapt) {
      norms = {std::sqrt(sum_of_item(item, t.value_squares)),
               std::sqrt(sum_of_item(item, t.change_squares))};
    }
    if (lane_index() == 0) {
      const float rate = layer_rate(rule, item, norms, words.learning_rate, words.factor);
      if (rule.form == StepForm::kAdam) {
        t.steps[i].rate = rate;
      } else if (rule.form == StepForm::kSgd) {
        MomentumFactors f = sgd_factors(item, words.learning_rate, words.factor);
        f.weight_decay = rule.outer ? 0.0f : f.weight_decay;
        t.steps[i].momentum = f;
      } else {
        const bool still = item.adapt && norms.change == 0.0;
        t.steps[i].momentum =
            lars_factors(rule, item, still, rate, words.learning_rate, words.factor);
      }
    }
  }
  if (!is_last_block(&words.arrived)) {
    return;
  }
  if (threadIdx.x == 0) {
    end_decision(t, words, skips, summed);
  }
  __syncthreads();
  for (size_t k = threadIdx.x; words.going != 0 && k < t.item_count; k += kStepThreads) {
    t.counts[k] += is_present(t.items[k]) ? 1 : 0;
  }
}

/// Calls body(item, its step, gradients, first element) for each eight elements of the thread's
/// block, where the step is made and the item's state is codes, or is not: a kernel of both has no
/// registers for it. Last block first: the end of what was read before may be in the cache still.
/// With kCodes by whole warps, of which the last threads may begin behind the parameter's end.
template <bool kCodes, bool kReads, uint32_t kGoing = kStep, class Body>
__device__ __forceinline__ void for_each_eight(const StepTables& t, const Body& body) {
  GRADWIRE_SHARED(room, typename Gradients<kReads>::Room);
  constexpr bool kFull = kReads || kGoing == kFrozenStep;  // no registers for an item either
  const StepBlock block = t.blocks[t.block_count - 1 - blockIdx.x];
  const ReadOnce<kFull, StepItem> item = t.items[block.item];
  if (t.words->going != kGoing || !is_present(item) || (item.codes[0] != nullptr) != kCodes) {
    return;
  }
  const ReadOnce<kFull, ItemStep> step = t.steps[block.item];
  const size_t begin = size_t{block.place} * kStepBlock;
  const auto count = static_cast<unsigned>(block_end(item, block) - begin);
  Gradients<kReads> gradients(room);
  gradients.for_each_window(item, begin, count, [&](unsigned window, unsigned here) {
    const unsigned end = here + (kCodes ? lane_index() * kPerThread : 0);
#pragma unroll 1
    for (unsigned i = threadIdx.x * kPerThread; i < end; i += kStepThreads * kPerThread) {
      const size_t first = begin + window + i;
      body(item, step, typename Gradients<kReads>::Eight(gradients, item, first, i), first);
    }
  });
}

template <bool kCodes, bool kReads>
__global__ void __launch_bounds__(kStepThreads, kBlocksAtOnce)
    momentum_kernel(StepTables t, StepRule rule) {
  for_each_eight<kCodes, kReads>(t, [&](const StepItem& item, const ItemStep& step, const auto& g,
                                        size_t first) {
    const MomentumFactors f = step.momentum;
    float w[kPerThread];
    load_value(item, step.fresh != 0, first, w);
    if (rule.form == StepForm::kSgd && f.momentum == 0.0f) {
#pragma unroll
      for (int k = 0; k < kPerThread; ++k) {
        w[k] = plain_element(w[k], g[k], f);
      }
    } else {
      float v[kPerThread];
      const StateOfEight<kCodes, true> old(item, 0, first);
#pragma unroll
      for (int k = 0; k < kPerThread; ++k) {
        const MomentumElement next = rule.nesterov ? nesterov_element(w[k], old[k], g[k], f)
                                                   : momentum_element(w[k], old[k], g[k], f);
        w[k] = next.value;
        v[k] = next.momentum;
      }
      store_state<kCodes, true>(item, 0, first, v, state_draws<kCodes>(item, step, first));
    }
    store_value(item, first, w);
  });
}

template <bool kCodes, bool kReads>
__global__ void __launch_bounds__(kStepThreads, kBlocksAtOnce) adam_kernel(StepTables t) {
  for_each_eight<kCodes, kReads>(
      t, [&](const StepItem& item, const ItemStep& step, const auto& g, size_t first) {
        const AdamFactors f = step.adam;
        const float rate = step.rate;
        float w[kPerThread], m[kPerThread], v[kPerThread];
        load_value(item, step.fresh != 0, first, w);
        const StateOfEight<kCodes, true> old_m(item, 0, first);
        const StateOfEight<kCodes, false> old_v(item, 1, first);
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
          const AdamElement next = adam_element(w[k], old_m[k], old_v[k], g[k], f);
          m[k] = next.exp_avg;
          v[k] = next.exp_avg_sq;
          w[k] = w[k] - rate * next.update;
        }
        store_value(item, first, w);
        const PhiloxCounter draws = state_draws<kCodes>(item, step, first);
        store_state<kCodes, true>(item, 0, first, m, draws);
        store_state<kCodes, false>(item, 1, first, v, draws);
      });
}

__global__ void __launch_bounds__(kStepThreads) take_values_kernel(StepTables t) {
  const StepBlock block = t.blocks[blockIdx.x];
  const StepItem item = t.items[block.item];
  if (item.master == nullptr && item.remainder == nullptr) {
    return;
  }
  const size_t end = block_end(item, block);
  for (size_t first = size_t{block.place} * kStepBlock + threadIdx.x * kPerThread; first < end;
       first += kStepThreads * kPerThread) {
    float w[kPerThread];
    load_value(item, true, first, w);
    store_master(item, first, w);
  }
}

}  // namespace gradwire::cuda
