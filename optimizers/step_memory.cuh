#pragma once
// A parameter's elements as floats, whatever memory holds: eight at a time, or one.

#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/optimizers/parameter_set.h"
#include "gradwire/optimizers/step_cuda.h"

namespace gradwire::cuda {

/// One past the block's last element in the parameter.
__device__ __forceinline__ size_t block_end(const StepItem& item, StepBlock block) {
  const size_t end = (size_t{block.place} + 1) * kStepBlock;
  return end < item.numel ? end : item.numel;
}

/// dispatch() on a type that is the same for all threads of a block.
template <class F>
__device__ __forceinline__ void for_type(DType dtype, const F& f) {
  if (dtype == DType::kFloat32) {
    f(float{});
  } else if (dtype == DType::kFloat16) {
    f(float16{});
  } else {
    f(bfloat16{});
  }
}

__device__ __forceinline__ void load_gradient(const StepItem& item, size_t first,
                                              float (&g)[kPerThread]) {
  for_type(item.gradient_type,
           [&](auto type) { load_floats<decltype(type)>(item.gradient, first, item.numel, g); });
}

__device__ __forceinline__ float gradient_at(const StepItem& item, size_t i) {
  float g = 0.0f;
  for_type(item.gradient_type,
           [&](auto type) { g = load_float<decltype(type)>(item.gradient, i); });
  return g;
}

/// Elements [first, first + 8) of 16 bits each, as they are; zeros from `numel` on.
__device__ __forceinline__ void load_halves(const std::byte* from, size_t first, size_t numel,
                                            uint16_t (&bits)[kPerThread]) {
  if (first + kPerThread <= numel) {
    load_eight(from + 2 * first, bits);
    return;
  }
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    bits[k] = first + k < numel ? load_aligned<uint16_t>(from + 2 * (first + k)) : uint16_t{0};
  }
}

/// The value's master, which others may have written the value beside.
__device__ __forceinline__ float followed_master(const StepItem& item, float master,
                                                 uint16_t value) {
  return item.value_type == DType::kFloat16 ? followed(master, float16{value})
                                            : followed(master, bfloat16{value});
}

/// The master; where it is `fresh`, the value as it is.
__device__ __forceinline__ void load_value(const StepItem& item, bool fresh, size_t first,
                                           float (&w)[kPerThread]) {
  if (fresh || (item.master == nullptr && item.remainder == nullptr)) {
    for_type(item.value_type,
             [&](auto type) { load_floats<decltype(type)>(item.value, first, item.numel, w); });
  } else if (item.master != nullptr) {
    load_floats<float>(as_bytes(item.master), first, item.numel, w);
    uint16_t written[kPerThread];
    load_halves(item.value, first, item.numel, written);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      w[k] = followed_master(item, w[k], written[k]);
    }
  } else {
    load_floats<bfloat16>(item.value, first, item.numel, w);
    float low[kPerThread];  // the bits of the remainder, as if they were upper halves
    load_floats<bfloat16>(reinterpret_cast<const std::byte*>(item.remainder), first, item.numel,
                          low);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      w[k] = joined_halves(static_cast<uint16_t>(__float_as_uint(w[k]) >> 16),
                           static_cast<uint16_t>(__float_as_uint(low[k]) >> 16));
    }
  }
}

__device__ __forceinline__ float value_at(const StepItem& item, bool fresh, size_t i) {
  if (fresh || (item.master == nullptr && item.remainder == nullptr)) {
    float w = 0.0f;
    for_type(item.value_type, [&](auto type) { w = load_float<decltype(type)>(item.value, i); });
    return w;
  }
  return item.master != nullptr
             ? followed_master(item, item.master[i], load_aligned<uint16_t>(item.value + 2 * i))
             : joined_halves(load_aligned<uint16_t>(item.value + 2 * i), item.remainder[i]);
}

/// Elements [first, first + 8) of 16 bits each, as they are; nothing from `numel` on.
__device__ __forceinline__ void store_halves(std::byte* to, size_t first, size_t numel,
                                             const uint16_t (&bits)[kPerThread]) {
  if (first + kPerThread <= numel) {
    store_eight(to + 2 * first, bits);
    return;
  }
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    if (first + k < numel) {
      store_aligned(to + 2 * (first + k), bits[k]);
    }
  }
}

/// What is kept of the master beside the value.
__device__ __forceinline__ void store_master(const StepItem& item, size_t first,
                                             const float (&w)[kPerThread]) {
  if (item.master != nullptr) {
    store_floats<float>(as_bytes(item.master), first, item.numel, w);
  } else if (item.remainder != nullptr) {
    uint16_t low[kPerThread];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      low[k] = lower_half(w[k]);
    }
    store_halves(reinterpret_cast<std::byte*>(item.remainder), first, item.numel, low);
  }
}

/// The master, and the value that it rounds to.
__device__ __forceinline__ void store_value(const StepItem& item, size_t first,
                                            const float (&w)[kPerThread]) {
  store_master(item, first, w);
  if (item.remainder != nullptr) {
    uint16_t high[kPerThread];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      high[k] = upper_half(w[k]);
    }
    store_halves(item.value, first, item.numel, high);
  } else {
    for_type(item.value_type,
             [&](auto type) { store_floats<decltype(type)>(item.value, first, item.numel, w); });
  }
}

}  // namespace gradwire::cuda
