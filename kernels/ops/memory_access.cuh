#pragma once
// Loads and stores of several elements at once. Payload bytes may begin at any address: a wide
// access is used where the address allows it, which is the same for all threads of a launch but
// for tails.

#include <bit>
#include <cstring>

#include "gradwire/kernels/core/dtype.h"
#include "gradwire/kernels/ops/launch.cuh"

namespace gradwire::cuda {

/// Elements that one thread takes at a time.
inline constexpr int kPerThread = 8;

template <class Word>
__device__ __forceinline__ bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(Word) == 0;
}

/// `Word` is uint4, uint2 or a smaller unsigned integer.
template <class Word>
__device__ __forceinline__ Word load_word(const std::byte* from) {
  if (is_aligned<Word>(from)) {
    return *reinterpret_cast<const Word*>(from);
  }
  // Volatile: host compilers merge these loads with the wide one above, alignment included.
  const auto* const source = reinterpret_cast<const volatile unsigned char*>(from);
  unsigned char bytes[sizeof(Word)];
#pragma unroll
  for (size_t i = 0; i < sizeof(Word); ++i) {
    bytes[i] = source[i];
  }
  Word word;
  memcpy(&word, bytes, sizeof word);
  return word;
}

template <class Word>
__device__ __forceinline__ void store_word(std::byte* to, Word word) {
  if (is_aligned<Word>(to)) {
    *reinterpret_cast<Word*>(to) = word;
    return;
  }
  auto* const target = reinterpret_cast<volatile unsigned char*>(to);
  unsigned char bytes[sizeof(Word)];
  memcpy(bytes, &word, sizeof word);
#pragma unroll
  for (size_t i = 0; i < sizeof(Word); ++i) {
    target[i] = bytes[i];
  }
}

/// The raw bits of T: what travels through load_word.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;

template <class T>
__device__ __forceinline__ float load_float(const std::byte* from, size_t index) {
  return to_float(std::bit_cast<T>(load_word<BitsOf<T>>(from + index * sizeof(T))));
}

template <class T>
__device__ __forceinline__ void store_float(std::byte* to, size_t index, float x) {
  store_word(to + index * sizeof(T), std::bit_cast<BitsOf<T>>(from_float<T>(x)));
}

/// x = elements [first, first + 8) of `from` as floats; zeros from `numel` on.
template <class T>
__device__ __forceinline__ void load_floats(const std::byte* from, size_t first, size_t numel,
                                            float (&x)[kPerThread]) {
  constexpr int kWords = kPerThread * sizeof(T) / sizeof(uint4);
  constexpr int kPerWord = sizeof(uint4) / sizeof(T);
  if (first + kPerThread <= numel) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint4 word = load_word<uint4>(from + first * sizeof(T) + w * sizeof(uint4));
      T elements[kPerWord];
      memcpy(elements, &word, sizeof word);
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        x[w * kPerWord + i] = to_float(elements[i]);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] = first + i < numel ? load_float<T>(from, first + i) : 0.0f;
  }
}

/// x = g + e, in float32; e null: x = g.
template <class T>
__device__ __forceinline__ void load_sum(const std::byte* g, const float* e, size_t first,
                                         size_t numel, float (&x)[kPerThread]) {
  load_floats<T>(g, first, numel, x);
  if (e == nullptr) {
    return;
  }
  float residual[kPerThread];
  load_floats<float>(reinterpret_cast<const std::byte*>(e), first, numel, residual);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] = x[i] + residual[i];
  }
}

/// Elements [first, first + 8) of `to` = x, rounded to T; nothing from `numel` on.
template <class T>
__device__ __forceinline__ void store_floats(std::byte* to, size_t first, size_t numel,
                                             const float (&x)[kPerThread]) {
  constexpr int kWords = kPerThread * sizeof(T) / sizeof(uint4);
  constexpr int kPerWord = sizeof(uint4) / sizeof(T);
  if (first + kPerThread <= numel) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      T elements[kPerWord];
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        elements[i] = from_float<T>(x[w * kPerWord + i]);
      }
      uint4 word;
      memcpy(&word, elements, sizeof word);
      store_word(to + first * sizeof(T) + w * sizeof(uint4), word);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (first + i < numel) {
      store_float<T>(to, first + i, x[i]);
    }
  }
}

__device__ __forceinline__ const std::byte* as_bytes(const float* x) {
  return reinterpret_cast<const std::byte*>(x);
}
__device__ __forceinline__ std::byte* as_bytes(float* x) {
  return reinterpret_cast<std::byte*>(x);
}

}  // namespace gradwire::cuda
