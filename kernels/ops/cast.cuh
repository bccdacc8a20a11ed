#pragma once
// One thread converts eight elements at a time: 16 bytes on the narrow side, 32 on the wide one.
// Payloads of casts are made and added up here too.

#include "gradwire/kernels/ops/cast_cuda.h"
#include "gradwire/kernels/ops/faults.cuh"
#include "gradwire/kernels/ops/seal.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kCastThreads = 256;

__device__ __forceinline__ size_t first_element_of_thread() {
  return (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPerThread;
}

/// One of two arrays, as ParityPointer.
struct ParityBytes {
  std::byte* first;
  std::byte* second;
  const uint32_t* parity;

  /// On the device alone: reads *parity.
  GRADWIRE_HOST_DEVICE std::byte* get() const {
    return parity != nullptr && *parity != 0 ? second : first;
  }
};

/// to[i] = from[i]. Bytes per element: those of From read, those of To written.
template <class From, class To>
__global__ void __launch_bounds__(kCastThreads)
    cast_kernel(ParityBytes from, ParityBytes to, size_t numel) {
  const std::byte* const source = from.get();
  std::byte* const out = to.get();
  const size_t all = size_t{gridDim.x} * blockDim.x * kPerThread;
  for (size_t first = first_element_of_thread(); first < numel; first += all) {
    float x[kPerThread];
    load_floats<From>(source, first, numel, x);
    store_floats<To>(out, first, numel, x);
  }
}

/// What encode_cast_kernel() reads and writes; null pointers stand for nothing.
struct EncodeCastArguments {
  const std::byte* g;
  ParityPointer e;
  float scale;
  std::byte* out;
  ParityPointer e_next;
  ParityPointer put_back;
  size_t numel;
  CallWords* call;
  Seal seal;
  bool in_place;  // e_next is g: what is not finite stays there
};

/// x = scale * g + e; out = x as S; e_next = x - out, put_back += g - out / scale. Bytes per
/// element: g, e and put_back read, out and what is kept written.
template <class T, class S>
__global__ void __launch_bounds__(kCastThreads) encode_cast_kernel(EncodeCastArguments a) {
  constexpr uint32_t kLargestFinite = 0x7F7FFFFF;
  const size_t first = first_element_of_thread();
  uint32_t largest = 0;
  if (first < a.numel) {
    float g[kPerThread];
    float x[kPerThread];
    load_floats<T>(a.g, first, a.numel, g);
    const float* const e = a.e.get();
    if (e != nullptr) {
      load_floats<float>(as_bytes(e), first, a.numel, x);
    }
    float left[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = e != nullptr ? g[i] + x[i] : a.scale == 1.0f ? g[i] : a.scale * g[i];
      const uint32_t bits = __float_as_uint(x[i]) & 0x7FFFFFFFu;
      largest = bits > largest ? bits : largest;
      left[i] = to_float(from_float<S>(x[i]));
    }
    store_floats<S, Memory::kPayload>(a.out, first, a.numel, x);
    float* const kept = a.e_next.get();
    if (kept != nullptr) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const bool finite = (__float_as_uint(left[i]) & 0x7FFFFFFFu) <= kLargestFinite;
        x[i] = a.in_place && !finite ? x[i] : x[i] - left[i];
      }
      store_floats<float>(as_bytes(kept), first, a.numel, x);
    }
    float* const back = a.put_back.get();
    if (back != nullptr) {
      load_floats<float>(as_bytes(back), first, a.numel, x);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        x[i] += g[i] - left[i] / a.scale;
      }
      store_floats<float>(as_bytes(back), first, a.numel, x);
    }
  }
  if (__syncthreads_or(largest > kLargestFinite ? 1 : 0) != 0 && threadIdx.x == 0) {
    atomicOr(&a.call->flags, kStatusNonFinite);
  }
  seal_payload(a.seal);
}

/// sum = factor * (the parts that hold an element, added in order), from element `begin` of the
/// group on; `begin` lies on a chunk, so a block's elements lie in one. `onto`: the finite values
/// of the one part are added to what is there.
template <class T, class S>
__global__ void __launch_bounds__(kCastThreads)
    sum_cast_kernel(const DevicePart* parts, size_t count, float factor, size_t begin,
                    std::byte* sum, size_t numel, bool onto, SumFaults overflow) {
  const size_t first = first_element_of_thread();
  if (first >= numel) {
    return;
  }
  const size_t chunk = (begin + first) / kChunk;
  float total[kPerThread] = {};
  if (onto) {
    if (!holds_chunk(parts[0], chunk)) {
      return;
    }
    load_floats<T>(sum, first, numel, total);
  }
  for (size_t i = 0; i < count; ++i) {
    const DevicePart part = parts[i];
    if (holds_chunk(part, chunk)) {
      float x[kPerThread];
      load_floats<S, Memory::kPayload>(part.body, begin + first - part.first_chunk * kChunk,
                                       part.numel, x);
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) {
        const bool finite = (__float_as_uint(x[j]) & 0x7FFFFFFFu) <= 0x7F7FFFFFu;
        total[j] = onto && !finite ? total[j] : total[j] + x[j];
      }
    }
  }
  if (factor != 1.0f) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      total[j] *= factor;
    }
  }
  report_overflow(overflow, largest_of(total, first, numel));
  store_floats<T>(sum, first, numel, total);
}

}  // namespace gradwire::cuda
