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

/// KeptVelocity as kernels take it.
struct VelocityPointer {
  ParityPointer u;
  VelocitySlot* slots;
  const StepWords* step;

  __device__ uint32_t committed() const { return step->parity != 0 ? 1 : 0; }
  /// Of the step that is committed now.
  __device__ VelocitySlot slot_of_now() const { return {step->step, step->epoch}; }
  /// u where it may be read, else null: zeros.
  __device__ const float* known() const {
    const VelocitySlot slot = slots[committed()];
    return slot.step == step->step && slot.epoch == step->epoch ? u.get() : nullptr;
  }
};

struct VelocityArguments {
  const std::byte* g;
  VelocityPointer velocity;
  ParityPointer e;
  ParityPointer u_next;
  ParityPointer x;
  size_t numel;
  float kept;
  float taken;
  const float* factor;  // or null
  float decay;
};

template <class T>
__global__ void __launch_bounds__(kVelocityThreads) accelerate_kernel(VelocityArguments a) {
  const float* const before = a.velocity.known();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    VelocitySlot next = a.velocity.slot_of_now();
    ++next.step;
    a.velocity.slots[1 - a.velocity.committed()] = next;
  }
  const size_t first = (size_t{blockIdx.x} * kVelocityThreads + threadIdx.x) * kPerThread;
  if (first >= a.numel) {
    return;
  }
  const float taken = a.factor != nullptr ? *a.factor : a.taken;
  float u[kPerThread] = {};
  if (before != nullptr) {
    load_floats<float>(as_bytes(before), first, a.numel, u);
  }
  float g[kPerThread];
  load_floats<T>(a.g, first, a.numel, g);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    u[i] = a.kept * u[i] + taken * g[i];
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

__global__ void __launch_bounds__(kVelocityThreads)
    read_velocity_kernel(VelocityPointer velocity, float* to, size_t numel) {
  const size_t first = (size_t{blockIdx.x} * kVelocityThreads + threadIdx.x) * kPerThread;
  if (first >= numel) {
    return;
  }
  float u[kPerThread] = {};
  if (const float* const known = velocity.known()) {
    load_floats<float>(as_bytes(known), first, numel, u);
  }
  store_floats<float>(as_bytes(to), first, numel, u);
}

__global__ void __launch_bounds__(kVelocityThreads)
    write_velocity_kernel(VelocityPointer velocity, const float* from, size_t numel) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    velocity.slots[velocity.committed()] = velocity.slot_of_now();
  }
  const size_t first = (size_t{blockIdx.x} * kVelocityThreads + threadIdx.x) * kPerThread;
  if (first >= numel) {
    return;
  }
  float u[kPerThread];
  load_floats<float>(as_bytes(from), first, numel, u);
  store_floats<float>(as_bytes(velocity.u.get()), first, numel, u);
}

}  // namespace gradwire::cuda
