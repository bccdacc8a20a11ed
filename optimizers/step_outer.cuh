#pragma once
// The outer step of local steps on a GPU (outer.cc has the formulas): the anchor is stepped in the
// value's place, and the value becomes the anchor. All memory is float32.

#include "gradwire/optimizers/step.cuh"

namespace gradwire::cuda {

/// Calls body(item, first element) for each eight elements of the thread's block.
template <class Body>
__device__ __forceinline__ void for_each_eight_values(const StepTables& t, const Body& body) {
  const StepBlock block = t.blocks[blockIdx.x];
  const StepItem item = t.items[block.item];
  const size_t end = block_end(item, block);
  for (size_t first = size_t{block.place} * kStepBlock + threadIdx.x * kPerThread; first < end;
       first += kStepThreads * kPerThread) {
    body(item, first);
  }
}

/// The values are where local steps begin.
__global__ void __launch_bounds__(kStepThreads) take_anchors_kernel(StepTables t) {
  for_each_eight_values(t, [](const StepItem& item, size_t first) {
    float w[kPerThread];
    load_floats<float>(item.value, first, item.numel, w);
    store_floats<float>(as_bytes(item.state[0]), first, item.numel, w);
  });
}

/// What local steps have moved values by, in the gradients' memory.
__global__ void __launch_bounds__(kStepThreads) write_moves_kernel(StepTables t) {
  for_each_eight_values(t, [](const StepItem& item, size_t first) {
    if (item.gradient == nullptr) {
      return;
    }
    float w[kPerThread], anchor[kPerThread];
    load_floats<float>(item.value, first, item.numel, w);
    load_floats<float>(as_bytes(item.state[0]), first, item.numel, anchor);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      anchor[k] = anchor[k] - w[k];
    }
    // A Parameter's gradient is given to be written.
    store_floats<float>(const_cast<std::byte*>(item.gradient), first, item.numel, anchor);
  });
}

template <bool kReads>
__global__ void __launch_bounds__(kStepThreads, kBlocksAtOnce)
    outer_kernel(StepTables t, StepRule rule) {
  for_each_eight<false, kReads>(
      t, [&](const StepItem& item, const ItemStep& step, const auto& g, size_t first) {
        const MomentumFactors f = step.momentum;
        float anchor[kPerThread];
        load_floats<float>(as_bytes(item.state[0]), first, item.numel, anchor);
        if (f.momentum == 0.0f) {
#pragma unroll
          for (int k = 0; k < kPerThread; ++k) {
            anchor[k] = plain_element(anchor[k], g[k], f);
          }
        } else {
          float v[kPerThread];
          load_floats<float>(as_bytes(item.state[1]), first, item.numel, v);
#pragma unroll
          for (int k = 0; k < kPerThread; ++k) {
            const MomentumElement next = rule.nesterov ? nesterov_element(anchor[k], v[k], g[k], f)
                                                       : momentum_element(anchor[k], v[k], g[k], f);
            anchor[k] = next.value;
            v[k] = next.momentum;
          }
          store_floats<float>(as_bytes(item.state[1]), first, item.numel, v);
        }
        store_floats<float>(as_bytes(item.state[0]), first, item.numel, anchor);
        store_floats<float>(item.value, first, item.numel, anchor);
      });
}

}  // namespace gradwire::cuda
