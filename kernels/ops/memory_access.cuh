#pragma once
// Loads and stores of eight elements at once, 16 bytes at a time where the address allows it, which
// is the same for all threads of a launch but for tails. Elements lie on multiples of their size;
// payload bytes may begin at any address.

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

// At an address that is a multiple of the word's size: any other is a fault on a GPU, and in the
// emulator too, whose host compiler would merge these accesses with those beside them that promise
// less.
#if defined(GRADWIRE_SIMT)

template <class Word>
void check_aligned(const void* address) {
  if (!is_aligned<Word>(address)) {
    throw simt::KernelFault(concat("an access of ", sizeof(Word), " bytes at an address that is ",
                                   reinterpret_cast<uintptr_t>(address) % sizeof(Word),
                                   " behind a multiple of them"));
  }
}

template <class Word>
Word load_aligned(const std::byte* from) {
  check_aligned<Word>(from);
  Word word;
  memcpy(&word, from, sizeof word);
  return word;
}

template <class Word>
void store_aligned(std::byte* to, Word word) {
  check_aligned<Word>(to);
  memcpy(to, &word, sizeof word);
}

#else

template <class Word>
__device__ __forceinline__ Word load_aligned(const std::byte* from) {
  return *reinterpret_cast<const Word*>(from);
}

template <class Word>
__device__ __forceinline__ void store_aligned(std::byte* to, Word word) {
  *reinterpret_cast<Word*>(to) = word;
}

#endif

/// At any address. `Word` is uint4, uint2 or a smaller unsigned integer.
template <class Word>
__device__ __forceinline__ Word load_word(const std::byte* from) {
  if (is_aligned<Word>(from)) {
    return load_aligned<Word>(from);
  }
  unsigned char bytes[sizeof(Word)];
#pragma unroll
  for (size_t i = 0; i < sizeof(Word); ++i) {
    bytes[i] = static_cast<unsigned char>(from[i]);
  }
  Word word;
  memcpy(&word, bytes, sizeof word);
  return word;
}

template <class Word>
__device__ __forceinline__ void store_word(std::byte* to, Word word) {
  if (is_aligned<Word>(to)) {
    store_aligned(to, word);
    return;
  }
  unsigned char bytes[sizeof(Word)];
  memcpy(bytes, &word, sizeof word);
#pragma unroll
  for (size_t i = 0; i < sizeof(Word); ++i) {
    to[i] = static_cast<std::byte>(bytes[i]);
  }
}

/// The raw bits of T: what travels through load_word.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;

/// Where elements may lie: on multiples of their size, or in a payload.
enum class Memory : uint8_t { kElements, kPayload };

template <class T, Memory kMemory = Memory::kElements>
__device__ __forceinline__ float load_float(const std::byte* from, size_t index) {
  if constexpr (kMemory == Memory::kPayload) {
    return to_float(std::bit_cast<T>(load_word<BitsOf<T>>(from + index * sizeof(T))));
  } else {
    return to_float(load_aligned<T>(from + index * sizeof(T)));
  }
}

template <class T, Memory kMemory = Memory::kElements>
__device__ __forceinline__ void store_float(std::byte* to, size_t index, float x) {
  if constexpr (kMemory == Memory::kPayload) {
    store_word(to + index * sizeof(T), std::bit_cast<BitsOf<T>>(from_float<T>(x)));
  } else {
    store_aligned(to + index * sizeof(T), from_float<T>(x));
  }
}

/// The eight elements at `from`.
template <class T, Memory kMemory = Memory::kElements>
__device__ __forceinline__ void load_eight(const std::byte* from, T (&elements)[kPerThread]) {
  constexpr int kWords = kPerThread * sizeof(T) / sizeof(uint4);
  if (kMemory == Memory::kPayload || is_aligned<uint4>(from)) {
    uint4 words[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const std::byte* const at = from + w * sizeof(uint4);
      words[w] = kMemory == Memory::kPayload ? load_word<uint4>(at) : load_aligned<uint4>(at);
    }
    memcpy(elements, words, sizeof words);
  } else {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      elements[i] = load_aligned<T>(from + i * sizeof(T));
    }
  }
}

template <class T, Memory kMemory = Memory::kElements>
__device__ __forceinline__ void store_eight(std::byte* to, const T (&elements)[kPerThread]) {
  constexpr int kWords = kPerThread * sizeof(T) / sizeof(uint4);
  if (kMemory == Memory::kPayload || is_aligned<uint4>(to)) {
    uint4 words[kWords];
    memcpy(words, elements, sizeof words);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      std::byte* const at = to + w * sizeof(uint4);
      if constexpr (kMemory == Memory::kPayload) {
        store_word(at, words[w]);
      } else {
        store_aligned(at, words[w]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      store_aligned(to + i * sizeof(T), elements[i]);
    }
  }
}

/// x = elements [first, first + 8) of `from` as floats; zeros from `numel` on.
template <class T, Memory kMemory = Memory::kElements>
__device__ __forceinline__ void load_floats(const std::byte* from, size_t first, size_t numel,
                                            float (&x)[kPerThread]) {
  if (first + kPerThread <= numel) {
    T elements[kPerThread];
    load_eight<T, kMemory>(from + first * sizeof(T), elements);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = to_float(elements[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] = first + i < numel ? load_float<T, kMemory>(from, first + i) : 0.0f;
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
template <class T, Memory kMemory = Memory::kElements>
__device__ __forceinline__ void store_floats(std::byte* to, size_t first, size_t numel,
                                             const float (&x)[kPerThread]) {
  if (first + kPerThread <= numel) {
    T elements[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      elements[i] = from_float<T>(x[i]);
    }
    store_eight<T, kMemory>(to + first * sizeof(T), elements);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (first + i < numel) {
      store_float<T, kMemory>(to, first + i, x[i]);
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
