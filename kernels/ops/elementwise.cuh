#pragma once
// One thread takes eight elements at a time: 16 bytes of 16-bit types, 32 of float32.

#include "gradwire/kernels/ops/elementwise_cuda.h"
#include "gradwire/kernels/ops/memory_access.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kElementwiseThreads = 256;

/// to[i] = factor * from[i]. Bytes per element: those of From read, those of To written.
template <class From, class To>
__global__ void __launch_bounds__(kElementwiseThreads)
    multiply_kernel(const std::byte* from, Factor factor, std::byte* to, size_t numel) {
  float by = factor.value;
  if (factor.on_device != nullptr) {
    by = factor.with == Factor::With::kQuotient ? by / *factor.on_device : by * *factor.on_device;
  }
  const size_t first = (size_t{blockIdx.x} * kElementwiseThreads + threadIdx.x) * kPerThread;
  if (first >= numel) {
    return;
  }
  float x[kPerThread];
  load_floats<From>(from, first, numel, x);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] = by * x[i];
  }
  store_floats<To>(to, first, numel, x);
}

/// Bytes per element: written after a fault, else none.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    fill_after_fault_kernel(const StepWords* step, std::byte* to, float value, size_t numel) {
  if (step->status == 0) {
    return;
  }
  float x[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] = value;
  }
  const size_t all = size_t{gridDim.x} * kElementwiseThreads * kPerThread;
  for (size_t first = (size_t{blockIdx.x} * kElementwiseThreads + threadIdx.x) * kPerThread;
       first < numel; first += all) {
    store_floats<T>(to, first, numel, x);
  }
}

/// Bytes per element: 4 and twice those of T, or none.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_until_committed_kernel(const StepWords* step, uint32_t committed, const std::byte* values,
                               std::byte* to, size_t numel) {
  const size_t first = (size_t{blockIdx.x} * kElementwiseThreads + threadIdx.x) * kPerThread;
  if (step->step != committed || first >= numel) {
    return;
  }
  float x[kPerThread], more[kPerThread];
  load_floats<T>(to, first, numel, x);
  load_floats<float>(values, first, numel, more);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] = x[i] + more[i];
  }
  store_floats<T>(to, first, numel, x);
}

}  // namespace gradwire::cuda
