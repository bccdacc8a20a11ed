#pragma once
// One thread adds up eight elements, as casts do.

#include "gradwire/kernels/ops/feedback_cuda.h"
#include "gradwire/kernels/ops/overflow_flag.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kFeedbackThreads = 256;

/// What add_decayed_kernel() reads and writes, `numel` elements each.
struct DecayedSumArguments {
  const std::byte* g;
  ParityPointer e;
  float decay;
  float* x;
  size_t numel;
};

/// Bytes per element: g and e read, x written.
template <class T>
__global__ void __launch_bounds__(kFeedbackThreads) add_decayed_kernel(DecayedSumArguments a) {
  const size_t first = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPerThread;
  if (first >= a.numel) {
    return;
  }
  float x[kPerThread];
  float e[kPerThread];
  load_floats<T>(a.g, first, a.numel, x);
  load_floats<float>(as_bytes(a.e.get()), first, a.numel, e);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] += a.decay * e[i];
  }
  store_floats<float>(as_bytes(a.x), first, a.numel, x);
}

/// What subtract_sent_kernel() reads and writes, `numel` elements each.
struct SentSumArguments {
  const float* x;
  ParityPointer e;
  ParityPointer left;
  size_t numel;
  Seal seal;
};

/// Bytes per element: x, e and left read, left written.
__global__ void __launch_bounds__(kFeedbackThreads) subtract_sent_kernel(SentSumArguments a) {
  const size_t first = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPerThread;
  float left[kPerThread] = {};
  if (first < a.numel) {
    float* const kept = a.left.get();
    float x[kPerThread];
    float e[kPerThread];
    load_floats<float>(as_bytes(a.x), first, a.numel, x);
    load_floats<float>(as_bytes(a.e.get()), first, a.numel, e);
    load_floats<float>(as_bytes(kept), first, a.numel, left);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      left[i] = e[i] - (x[i] - left[i]);
    }
    store_floats<float>(as_bytes(kept), first, a.numel, left);
  }
  flag_overflow_of(left, a.seal);
}

/// What add_estimate_kernel() reads and writes, `numel` elements each.
struct EstimateArguments {
  ParityPointer estimate;
  ParityPointer next;
  float* mean;
  uint32_t* status;
  size_t numel;
};

/// Bytes per element: estimate and mean read, mean and next written: 16.
__global__ void __launch_bounds__(kFeedbackThreads) add_estimate_kernel(EstimateArguments a) {
  const size_t first = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPerThread;
  if (first >= a.numel) {
    return;
  }
  float x[kPerThread];
  float mean[kPerThread];
  load_floats<float>(as_bytes(a.estimate.get()), first, a.numel, x);
  load_floats<float>(as_bytes(a.mean), first, a.numel, mean);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] += mean[i];
  }
  store_floats<float>(as_bytes(a.mean), first, a.numel, x);
  store_floats<float>(as_bytes(a.next.get()), first, a.numel, x);
  if (any_non_finite(x)) {
    atomicOr(a.status, kStatusNonFinite);
  }
}

}  // namespace gradwire::cuda
