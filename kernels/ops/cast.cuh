#pragma once
// One thread converts eight elements: 16 bytes on the narrow side, 32 on the wide one.

#include "gradwire/kernels/ops/memory_access.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kCastThreads = 256;

__device__ __forceinline__ size_t first_element_of_thread() {
  return (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPerThread;
}

template <class T>
__global__ void __launch_bounds__(kCastThreads)
    widen_kernel(const std::byte* source, float* out, size_t numel) {
  const size_t first = first_element_of_thread();
  if (first >= numel) {
    return;
  }
  float x[kPerThread];
  load_floats<T>(source, first, numel, x);
  store_floats<float>(as_bytes(out), first, numel, x);
}

template <class T>
__global__ void __launch_bounds__(kCastThreads)
    narrow_kernel(const float* source, std::byte* out, size_t numel) {
  const size_t first = first_element_of_thread();
  if (first >= numel) {
    return;
  }
  float x[kPerThread];
  load_floats<float>(as_bytes(source), first, numel, x);
  store_floats<T>(out, first, numel, x);
}

}  // namespace gradwire::cuda
