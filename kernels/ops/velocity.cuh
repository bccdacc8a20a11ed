#pragma once
// Eight neighbouring threads take a chunk for the norm, whose sums have one order; the rest goes
// over elements one by one, eight to a thread.

#include <math.h>  // sqrt() of both backends

#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/ordered_sum.cuh"
#include "gradwire/kernels/ops/payload_header.h"
#include "gradwire/kernels/ops/velocity_cuda.h"

namespace gradwire::cuda {

inline constexpr unsigned kVelocityThreads = 256;
inline constexpr unsigned kClipLanes = 8;
inline constexpr unsigned kClipChunks = kVelocityThreads / kClipLanes;
static_assert(kClipRun == kClipChunks * kChunk);

/// A block per run.
template <class T>
__global__ void __launch_bounds__(kVelocityThreads)
    clip_sums_kernel(const std::byte* g, size_t numel, double* sums) {
  GRADWIRE_SHARED(of_lane, double[kVelocityThreads]);
  const size_t begin = blockIdx.x * kClipRun + threadIdx.x / kClipLanes * kChunk;
  const size_t end = begin + kChunk < numel ? begin + kChunk : numel;
  double sum = 0.0;
#pragma unroll 8
  for (size_t i = begin + threadIdx.x % kClipLanes; i < end; i += kClipLanes) {
    const double x = load_float<T>(g, i);
    sum += x * x;
  }
  of_lane[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x % kClipLanes == 0) {
    sum = 0.0;
    for (unsigned lane = 0; lane < kClipLanes; ++lane) {
      sum += of_lane[threadIdx.x + lane];
    }
    of_lane[threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0.0;
    for (unsigned chunk = 0; chunk < kClipChunks; ++chunk) {  // zeros behind the last one
      sum += of_lane[chunk * kClipLanes];
    }
    sums[blockIdx.x] = sum;
  }
}

/// One warp.
__global__ void __launch_bounds__(kWarp)
    clip_factor_kernel(const double* sums, size_t count, double limit, float* factor) {
  const double sum = warp_sum_in_order(sums, count);
  if (lane_index() == 0) {
    const double norm = sqrt(sum);
    const bool clips = norm > limit && norm <= std::numeric_limits<double>::max();
    *factor = clips ? static_cast<float>(limit / norm) : 1.0f;
  }
}

struct VelocityArguments {
  const std::byte* g;
  ParityPointer u;
  ParityPointer e;
  ParityPointer u_next;
  ParityPointer x;
  size_t numel;
  float momentum;
  float decay;
  const float* factor;  // or null
  VelocitySlot* slots;
  const StepWords* step;
};

template <class T>
__global__ void __launch_bounds__(kVelocityThreads) accelerate_kernel(VelocityArguments a) {
  const uint32_t committed = a.step->parity != 0 ? 1 : 0;
  const VelocitySlot slot = a.slots[committed];
  const bool known = slot.step == a.step->step && slot.epoch == a.step->epoch;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    a.slots[1 - committed] = {a.step->step + 1, a.step->epoch};
  }
  const size_t first = (size_t{blockIdx.x} * kVelocityThreads + threadIdx.x) * kPerThread;
  if (first >= a.numel) {
    return;
  }
  const float factor = a.factor != nullptr ? *a.factor : 1.0f;
  float u[kPerThread] = {};
  if (known) {
    load_floats<float>(as_bytes(a.u.get()), first, a.numel, u);
  }
  float g[kPerThread];
  load_floats<T>(a.g, first, a.numel, g);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    u[i] = a.momentum * u[i] + factor * g[i];
  }
  store_floats<float>(as_bytes(a.u_next.get()), first, a.numel, u);
  float* const x = a.x.get();
  if (x == nullptr) {
    return;
  }
  if (const float* const e = a.e.get()) {
    load_floats<float>(as_bytes(e), first, a.numel, g);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      u[i] = u[i] + a.decay * g[i];
    }
  }
  store_floats<float>(as_bytes(x), first, a.numel, u);
}

/// A thread per word of the mask.
__global__ void __launch_bounds__(kVelocityThreads)
    clear_marked_kernel(ParityPointer x, const std::byte* mask, size_t words) {
  const size_t word = size_t{blockIdx.x} * kVelocityThreads + threadIdx.x;
  if (word >= words) {
    return;
  }
  float* const to = x.get() + word * 32;
  for (auto flags = load_word<uint32_t>(mask + word * 4); flags != 0; flags &= flags - 1) {
    to[__ffs(static_cast<int>(flags)) - 1] = 0.0f;
  }
}

}  // namespace gradwire::cuda
