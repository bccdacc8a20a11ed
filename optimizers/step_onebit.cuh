#pragma once
// 1-bit Adam and 1-bit LAMB on a GPU (onebit.cc has the formulas). Whether v is frozen follows from
// counts in GPU memory, so that all launches are made in every step, and those of the other kind of
// step return at once. Before the freeze the step is that of step.cuh, at it step_freeze.cuh.

#include "gradwire/optimizers/step.cuh"

namespace gradwire::cuda {

inline constexpr int kMoment = 0, kVariance = 1, kFresh = 2;  // places among the state's names

/// One thread block: whether every parameter that is there has made freeze_step steps.
__device__ inline bool all_frozen(const StepTables& t, const OneBitRule& rule) {
  int present = 0, early = 0;
  for (size_t i = threadIdx.x; i < t.item_count; i += blockDim.x) {
    const bool there = is_present(t.items[i]);
    present |= there ? 1 : 0;
    early |= there && t.counts[i] < rule.freeze_step ? 1 : 0;
  }
  const bool any = __syncthreads_or(present) != 0;
  return __syncthreads_or(early) == 0 && any;
}

/// One thread block: what kernels of the step take of a parameter.
__device__ inline void take_frozen_factors(const StepTables& t, const OneBitTables& o,
                                           float factor) {
  for (size_t i = threadIdx.x; i < t.item_count; i += blockDim.x) {
    o.factors[i] = frozen_factors(o.rule, t.items[i], o.layers[i].momentum_scale, t.counts[i],
                                  o.averages[i].variance_steps, factor);
    t.steps[i].steps = t.counts[i];
    t.steps[i].fresh = t.counts[i] == 0 ? 1 : 0;
  }
}

/// One thread block, behind the clip's sums: whether momentum is exchanged, and how it is made.
__global__ void __launch_bounds__(kBeginThreads)
    prepare_onebit_kernel(StepTables t, StepRequest r, OneBitTables o) {
  OptimizerWords& words = *t.words;
  const double max_norm = r.rule.max_grad_norm;
  const double squares = max_norm != 0.0 ? sum_of_items(t) : 0.0;
  const bool frozen = all_frozen(t, o.rule);
  if (threadIdx.x == 0) {
    words.bad_block = 0;  // what is not finite is found behind the exchange
    words.going = frozen && words.fault == StepFault::kNone ? kFrozenStep : 0;
  }
  __syncthreads();
  const bool sound = words.going != 0;
  if (frozen) {
    refuse_payloads(t, false, StepFault::kUnwritable);
  }
  if (threadIdx.x == 0) {
    const bool scales = is_loss_scale(loss_scale_of(r.options));
    words.prepared = frozen && (words.going != 0 || !sound) ? 1 : 0;
    words.prepared_scale = scale_of_gradients(r.options);
    words.factor = scales ? factor_of_gradients(r.options, squares, max_norm)
                          : std::numeric_limits<float>::quiet_NaN();
  }
  __syncthreads();
  take_frozen_factors(t, o, words.factor);
}

/// This rank's momentum, in the gradients' memory.
__global__ void __launch_bounds__(kStepThreads)
    local_momentum_kernel(StepTables t, OneBitTables o) {
  const StepBlock block = t.blocks[blockIdx.x];
  const StepItem item = t.items[block.item];
  if (t.words->prepared == 0 || item.gradient == nullptr) {
    return;
  }
  const FrozenFactors f = o.factors[block.item];
  const size_t end = block_end(item, block);
#pragma unroll 1
  for (size_t first = size_t{block.place} * kStepBlock + threadIdx.x * kPerThread; first < end;
       first += kStepThreads * kPerThread) {
    float m[kPerThread], v[kPerThread], g[kPerThread];
    load_gradient(item, first, g);
    load_state<true>(item, kMoment, first, m);
    load_state<false>(item, kVariance, first, v);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      g[k] = local_momentum_element(m[k], v[k], g[k], f);
    }
    for_type(item.gradient_type, [&](auto type) {
      // A Parameter's gradient is given to be written.
      store_floats<decltype(type)>(const_cast<std::byte*>(item.gradient), first, item.numel, g);
    });
  }
}

/// One thread: why the step on momenta is not made.
__device__ inline void check_prepared(OptimizerWords& words, const StepOptions& options) {
  const double scale = scale_of_gradients(options);
  if (words.prepared == 0) {
    words.fault = StepFault::kUnprepared;
  } else if (scale != words.prepared_scale) {
    words.fault = StepFault::kScaled;
    words.fault_value = scale;
    words.fault_wanted = words.prepared_scale;
  }
  words.going = words.fault == StepFault::kNone ? kFrozenStep : 0;
}

/// One thread block: what the step does, and of which kind it is.
__global__ void __launch_bounds__(kBeginThreads)
    begin_onebit_kernel(StepTables t, StepRequest r, OneBitTables o) {
  const double max_norm = r.rule.max_grad_norm;
  const double squares = max_norm != 0.0 ? sum_of_items(t) : 0.0;
  const bool frozen = all_frozen(t, o.rule);
  if (threadIdx.x == 0) {
    OptimizerWords& words = *t.words;
    const bool sound = words.fault == StepFault::kNone;
    take_options(words, r.options, squares, max_norm);
    words.elsewhere = 0;
    if (frozen && words.going != 0) {
      check_prepared(words, r.options);
    }
    if (!sound || words.fault == StepFault::kNone) {  // else the call may be made again
      words.prepared = 0;
    }
    words.factor = frozen ? 1.0f : words.factor;
  }
  refuse_payloads(t, r.reads && !frozen, frozen ? StepFault::kUnwritable : StepFault::kNotReading);
  if (frozen) {
    take_frozen_factors(t, o, 1.0f);
    return;
  }
  const float factor = t.words->factor;
  for (size_t i = threadIdx.x; i < t.item_count; i += kBeginThreads) {
    t.steps[i].steps = t.counts[i];
    t.steps[i].fresh = t.counts[i] == 0 ? 1 : 0;
    t.steps[i].adam =
        onebit_factors(o.rule, t.items[i], t.counts[i], o.averages[i].variance_steps, factor);
  }
}

/// What the rates of a frozen step follow; where nothing adapts momenta are looked at, if `alone`.
template <bool kCodes>
__global__ void __launch_bounds__(kStepThreads, kBlocksAtOnce)
    measure_frozen_kernel(StepTables t, OneBitTables o, bool layerwise, bool alone) {
  GRADWIRE_SHARED(of_pieces, double[2][kPieces]);
  GRADWIRE_SHARED(ratios, uint32_t[kPieces]);
  const StepBlock block = t.blocks[blockIdx.x];
  const StepItem& item = t.items[block.item];
  const bool sums = layerwise && item.adapt;
  if (t.words->going != kFrozenStep || item.gradient == nullptr || !(sums || alone)) {
    return;
  }
  const size_t begin = size_t{block.place} * kStepBlock;
  const auto count = static_cast<unsigned>(block_end(item, block) - begin);
  const FrozenFactors& f = o.factors[block.item];
  uint32_t largest = 0;
#pragma unroll 1
  for (unsigned piece = warp_index(); piece * kStepPiece < count; piece += kStepThreads / kWarp) {
    const unsigned first = piece * kStepPiece;
    const size_t at = begin + first;
    const unsigned numel = count - first < kStepPiece ? count - first : unsigned{kStepPiece};
    const auto variance = [&](unsigned i) {
      return state_at<kCodes, false>(item, kVariance, at + i);
    };
    uint32_t ratio = 0;
#pragma unroll 1
    for (unsigned i = lane_index(); i < numel; i += kWarp) {
      const float exchanged = gradient_at(item, at + i);
      largest = larger(largest, magnitude_bits(exchanged));
      if (sums) {
        const float v = variance(i);
        const float now = std::sqrt(fresh_element(state_at<kCodes, true>(item, kMoment, at + i),
                                                  frozen_momentum(exchanged, v, f),
                                                  item.state[kFresh][at + i], f));
        const float of = frozen_denominator(v, f) / (now * f.fresh_root_correction2 + f.epsilon);
        ratio = larger(ratio, __float_as_uint(of));
      }
    }
    if (!sums) {
      continue;
    }
    // Of the update without decay, then with it: one text for both, for the sake of registers.
#pragma unroll 1
    for (int decays = 0; decays < 2; ++decays) {
      const auto update = [&](unsigned i) {
        const float v = variance(i);
        const float m = frozen_momentum(gradient_at(item, at + i), v, f);
        const float part = (m * f.correction1) / frozen_denominator(v, f);
        return decays == 0 ? part : part + f.weight_decay * value_at(item, false, at + i);
      };
      const double sum = chunk_sum_of_squares(update, numel);
      if (lane_index() == 0) {
        of_pieces[decays][piece] = sum;
      }
    }
#pragma unroll
    for (int width = kWarp / 2; width > 0; width /= 2) {
      ratio = larger(ratio, __shfl_xor_sync(kAllLanes, ratio, width));
    }
    if (lane_index() == 0) {
      ratios[piece] = ratio;
    }
  }
  note_finite(t, largest);  // a barrier: all pieces are there
  if (sums && threadIdx.x < 2) {
    double sum = 0.0;
    uint32_t most = 0;
    for (unsigned piece = 0; piece * kStepPiece < count; ++piece) {
      sum += of_pieces[threadIdx.x][piece];
      most = larger(most, ratios[piece]);
    }
    // By itself, as in measure_kernel.
    double* const sums_of = threadIdx.x == 0 ? t.value_squares : t.change_squares;
    sums_of[blockIdx.x] = sum;
    if (threadIdx.x == 0) {
      o.ratios[blockIdx.x] = most;
    }
  }
}

/// Rates, a warp for each parameter. The last thread block decides whether the step is made, counts
/// it, and takes its averages; and says whether it is the last before the freeze.
__global__ void __launch_bounds__(kStepThreads, kBlocksAtOnce)
    decide_onebit_kernel(StepTables t, StepRule rule, OneBitTables o, bool skips) {
  OptimizerWords& words = *t.words;
  const size_t i = size_t{blockIdx.x} * kItemsOfBlock + warp_index();
  if (i < t.item_count && is_present(t.items[i])) {
    const StepItem& item = t.items[i];
    const bool adapts = rule.layerwise && item.adapt;
    LayerNorms squares{0.0, 0.0};
    uint32_t ratio = 0;
    if (adapts) {
      squares = {sum_of_item(item, t.value_squares), sum_of_item(item, t.change_squares)};
      for (uint32_t b = lane_index(); b < item.block_count; b += kWarp) {
        ratio = larger(ratio, o.ratios[item.first_block + b]);
      }
      for (int width = kWarp / 2; width > 0; width /= 2) {
        ratio = larger(ratio, __shfl_xor_sync(kAllLanes, ratio, width));
      }
    }
    if (lane_index() == 0) {
      const LayerNorms norms{std::sqrt(squares.values), std::sqrt(squares.change)};
      t.slice_sums[2 * i] = norms.values;
      t.slice_sums[2 * i + 1] = norms.change;
      if (words.going == kFrozenStep) {
        const double rate = words.learning_rate * item.learning_rate_scale;
        const OneBitLayer& layer = o.layers[i];
        const float next =
            adapts ? next_factor(o.rule, item, __uint_as_float(ratio), squares, layer.factor)
                   : layer.factor;
        o.next_factors[i] = next;
        t.steps[i].rate = to_rate(
            adapts ? rate * mean_ratio(o.rule, layer.coefficient, o.averages[i].coefficients) *
                         static_cast<double>(next)
                   : rate);
      } else {
        t.steps[i].rate = layer_rate(rule, item, norms, words.learning_rate, words.factor);
      }
    }
  }
  if (!is_last_block(&words.arrived)) {
    return;
  }
  if (threadIdx.x == 0) {
    end_decision(t, words, skips, false);
    words.freezing = 0;
  }
  __syncthreads();
  const uint32_t going = words.going;
  if (going == 0) {
    return;
  }
  for (size_t k = threadIdx.x; k < t.item_count; k += kStepThreads) {
    if (!is_present(t.items[k])) {
      continue;
    }
    ++t.counts[k];
    if (going == kFrozenStep) {
      o.layers[k].factor = o.next_factors[k];
      continue;
    }
    ++o.averages[k].variance_steps;
    if (rule.layerwise && t.items[k].adapt) {
      average_ratio(o.rule, rule, {t.slice_sums[2 * k], t.slice_sums[2 * k + 1]}, o.layers[k],
                    o.averages[k]);
    }
  }
  __syncthreads();
  const bool frozen = all_frozen(t, o.rule);
  if (threadIdx.x == 0) {
    words.freezing = frozen && going != kFrozenStep ? 1 : 0;
  }
}

template <bool kCodes>
__global__ void __launch_bounds__(kStepThreads, kBlocksAtOnce)
    frozen_update_kernel(StepTables t, OneBitTables o, bool layerwise) {
  for_each_eight<kCodes, false, kFrozenStep>(
      t, [&](const StepItem& item, const ItemStep& step, const auto& g, size_t first) {
        const FrozenFactors& f = o.factors[t.blocks[t.block_count - 1 - blockIdx.x].item];
        const StateOfEight<kCodes, false> v(item, kVariance, first);
        float x[kPerThread];
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
          x[k] = frozen_momentum(g[k], v[k], f);
        }
        if (layerwise) {
          const StateOfEight<kCodes, true> last(item, kMoment, first);
          float fresh[kPerThread];
          load_floats<float>(as_bytes(item.state[kFresh]), first, item.numel, fresh);
#pragma unroll
          for (int k = 0; k < kPerThread; ++k) {
            fresh[k] = fresh_element(last[k], x[k], fresh[k], f);
          }
          store_floats<float>(as_bytes(item.state[kFresh]), first, item.numel, fresh);
        }
        float w[kPerThread];
        load_value(item, step.fresh != 0, first, w);
        store_state<kCodes, true>(item, kMoment, first, x, state_draws<kCodes>(item, step, first));
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
          const float part = (x[k] * f.correction1) / frozen_denominator(v[k], f);
          w[k] = w[k] - step.rate * (part + f.weight_decay * w[k]);
        }
        store_value(item, first, w);
      });
}

}  // namespace gradwire::cuda
