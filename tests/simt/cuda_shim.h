#pragma once
// CUDA's names for the emulator. Included before everything else (-include) where a kernel source
// is compiled as C++; GRADWIRE_SIMT tells the source so.

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/simt/emulator.h"
#include "tests/simt/queue.h"

#define GRADWIRE_SIMT 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::gradwire::simt::thread_index())
#define blockIdx (::gradwire::simt::block_index())
#define blockDim (::gradwire::simt::block_extent())
#define gridDim (::gradwire::simt::grid_extent())

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }

inline void __syncthreads() { gradwire::simt::barrier(false, "__syncthreads"); }
inline int __syncthreads_count(int predicate) {
  return static_cast<int>(gradwire::simt::barrier(predicate != 0, "__syncthreads_count"));
}
inline int __syncthreads_or(int predicate) {
  return gradwire::simt::barrier(predicate != 0, "__syncthreads_or") > 0 ? 1 : 0;
}
inline int __syncthreads_and(int predicate) {
  return gradwire::simt::barrier(predicate == 0, "__syncthreads_and") == 0 ? 1 : 0;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
  gradwire::simt::exchange(mask, 0, "__syncwarp");
}
inline void __threadfence() { gradwire::simt::fence(); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { gradwire::simt::yield(); }

namespace gradwire::simt {

template <class T>
uint64_t to_word(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}
template <class T>
T from_word(uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

/// The value of lane `source` of the calling lane's group of `width` lanes, its own value where
/// `valid` is false.
template <class T>
T take(const uint64_t* words, unsigned source, bool valid, unsigned width) {
  const unsigned own = lane();
  const unsigned group = own & ~(width - 1);
  return from_word<T>(words[valid ? group | source : own]);
}

/// Combines the values of the mask's lanes in lane order.
template <class T, class F>
T reduce(unsigned mask, T value, const char* name, F combine) {
  const uint64_t* const words = exchange(mask, to_word(value), name);
  bool first = true;
  T result{};
  for (unsigned l = 0; l < 32; ++l) {
    if ((mask >> l & 1u) != 0) {
      const T other = from_word<T>(words[l]);
      result = first ? other : combine(result, other);
      first = false;
    }
  }
  return result;
}

#if defined(GRADWIRE_SIMT_RACES)
inline constexpr int kOrder = __ATOMIC_RELAXED;  // as on a GPU: fences alone make order
#else
inline constexpr int kOrder = __ATOMIC_SEQ_CST;
#endif

template <class T, class F>
T update(T* address, F next) {
#if defined(GRADWIRE_SIMT_RACES)
  before_atomic(address);
#endif
  T before;
  __atomic_load(address, &before, kOrder);
  T after = next(before);
  while (!__atomic_compare_exchange(address, &before, &after, false, kOrder, kOrder)) {
    after = next(before);
  }
#if defined(GRADWIRE_SIMT_RACES)
  after_atomic(address);
#endif
  return before;
}

}  // namespace gradwire::simt

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  namespace simt = gradwire::simt;
  const auto w = static_cast<unsigned>(width);
  const uint64_t* const words = simt::exchange(mask, simt::to_word(value), "__shfl_sync");
  return simt::take<T>(words, static_cast<unsigned>(source) & (w - 1), true, w);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  namespace simt = gradwire::simt;
  const auto w = static_cast<unsigned>(width);
  const uint64_t* const words = simt::exchange(mask, simt::to_word(value), "__shfl_xor_sync");
  const unsigned source = (simt::lane() & (w - 1)) ^ static_cast<unsigned>(lane_mask);
  return simt::take<T>(words, source, source < w, w);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  namespace simt = gradwire::simt;
  const auto w = static_cast<unsigned>(width);
  const uint64_t* const words = simt::exchange(mask, simt::to_word(value), "__shfl_up_sync");
  const unsigned own = simt::lane() & (w - 1);
  return simt::take<T>(words, own - delta, own >= delta, w);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  namespace simt = gradwire::simt;
  const auto w = static_cast<unsigned>(width);
  const uint64_t* const words = simt::exchange(mask, simt::to_word(value), "__shfl_down_sync");
  const unsigned source = (simt::lane() & (w - 1)) + delta;
  return simt::take<T>(words, source, source < w, w);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t* const words = gradwire::simt::exchange(mask, predicate != 0, "__ballot_sync");
  unsigned result = 0;
  for (unsigned l = 0; l < 32; ++l) {
    result |= words[l] != 0 ? 1u << l : 0u;
  }
  return result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  const uint64_t own = gradwire::simt::to_word(value);
  const uint64_t* const words = gradwire::simt::exchange(mask, own, "__match_any_sync");
  unsigned result = 0;
  for (unsigned l = 0; l < 32; ++l) {
    result |= (mask >> l & 1u) != 0 && words[l] == own ? 1u << l : 0u;
  }
  return result;
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
  return gradwire::simt::reduce(mask, value, "__reduce_max_sync",
                                [](T a, T b) { return a < b ? b : a; });
}
template <class T>
T __reduce_add_sync(unsigned mask, T value) {
  return gradwire::simt::reduce(mask, value, "__reduce_add_sync", [](T a, T b) { return a + b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return gradwire::simt::reduce(mask, value, "__reduce_or_sync",
                                [](unsigned a, unsigned b) { return a | b; });
}

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return gradwire::simt::update(address, [&](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return gradwire::simt::update(address, [&](T old) { return old < value ? value : old; });
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return gradwire::simt::update(address, [&](T old) { return old | value; });
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return gradwire::simt::update(address, [&](T) { return value; });
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return gradwire::simt::update(address, [&](T old) { return old == compare ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return gradwire::simt::update(address, [&](unsigned old) { return old >= limit ? 0 : old + 1; });
}
/// atom.acq_rel.gpu.inc (kernels/ops/block.cuh).
inline unsigned atomic_inc_acq_rel(unsigned* address, unsigned limit) {
  gradwire::simt::release();
  const unsigned before = atomicInc(address, limit);
  gradwire::simt::acquire();
  return before;
}
