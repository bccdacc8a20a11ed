#pragma once
// philox() of the 32 counters that a run of 256 elements needs, in registers. Each 64-bit lane
// holds one counter, of which only the low half of a word counts: one multiplication then gives
// both halves of a product where they are needed.

#include "gradwire/kernels/core/isa.h"

#ifdef GRADWIRE_X86

#include <immintrin.h>

#include "gradwire/kernels/core/philox.h"

namespace gradwire::cpu {

inline constexpr size_t kPhiloxRun = 256;  // elements of one call below

/// Eight counters from `first` on into 64 numbers; `out` lies on a multiple of 64 bytes.
template <int kGroups>
GRADWIRE_AVX512 inline __attribute__((always_inline)) void philox_groups_avx512(
    PhiloxCounter first, uint64_t key, uint16_t* out) {
  const __m512i factor0 = _mm512_set1_epi64(0xD2511F53);
  const __m512i factor1 = _mm512_set1_epi64(0xCD9E8D57);
  // In this order the low and the high halves of lanes, taken apart below, are runs of counters.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  __m512i c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
#pragma GCC unroll 4
  for (int i = 0; i < kGroups; ++i) {
    // 32-bit addition: word 0 wraps around as in rounding_counter().
    c0[i] = _mm512_add_epi32(_mm512_set1_epi64(first.word[0] + static_cast<uint32_t>(8 * i)), order);
    c1[i] = _mm512_set1_epi64(first.word[1]);
    c2[i] = _mm512_set1_epi64(first.word[2]);
    c3[i] = _mm512_set1_epi64(first.word[3]);
  }
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const __m512i k0 = _mm512_set1_epi64(key0);
    const __m512i k1 = _mm512_set1_epi64(key1);
#pragma GCC unroll 4
    for (int i = 0; i < kGroups; ++i) {
      const __m512i product0 = _mm512_mul_epu32(c0[i], factor0);
      const __m512i product1 = _mm512_mul_epu32(c2[i], factor1);
      c0[i] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c1[i], k0, 0x96);
      c1[i] = product1;
      c2[i] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c3[i], k1, 0x96);
      c3[i] = product0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
#pragma GCC unroll 4
  for (int i = 0; i < kGroups; ++i) {
    const __m512i low =
        _mm512_mask_shuffle_epi32(c0[i], 0xAAAA, c1[i], static_cast<_MM_PERM_ENUM>(0xA0));
    const __m512i high =
        _mm512_mask_shuffle_epi32(c2[i], 0xAAAA, c3[i], static_cast<_MM_PERM_ENUM>(0xA0));
    _mm512_store_si512(out + 64 * i, _mm512_unpacklo_epi64(low, high));
    _mm512_store_si512(out + 64 * i + 32, _mm512_unpackhi_epi64(low, high));
  }
}

GRADWIRE_AVX512 inline __attribute__((always_inline)) void philox_run_avx512(PhiloxCounter first,
                                                                             uint64_t key,
                                                                             uint16_t* out) {
  philox_groups_avx512<4>(first, key, out);
}

/// The same with four counters per register; `out` lies on a multiple of 32 bytes.
GRADWIRE_AVX2 inline __attribute__((always_inline)) void philox_groups_avx2(PhiloxCounter first,
                                                                            uint64_t key,
                                                                            uint16_t* out) {
  constexpr int kGroups = 2;
  const __m256i factor0 = _mm256_set1_epi64x(0xD2511F53);
  const __m256i factor1 = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i order = _mm256_setr_epi64x(0, 2, 1, 3);
  __m256i c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
#pragma GCC unroll 2
  for (int i = 0; i < kGroups; ++i) {
    c0[i] =
        _mm256_add_epi32(_mm256_set1_epi64x(first.word[0] + static_cast<uint32_t>(4 * i)), order);
    c1[i] = _mm256_set1_epi64x(first.word[1]);
    c2[i] = _mm256_set1_epi64x(first.word[2]);
    c3[i] = _mm256_set1_epi64x(first.word[3]);
  }
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const __m256i k0 = _mm256_set1_epi64x(key0);
    const __m256i k1 = _mm256_set1_epi64x(key1);
#pragma GCC unroll 2
    for (int i = 0; i < kGroups; ++i) {
      const __m256i product0 = _mm256_mul_epu32(c0[i], factor0);
      const __m256i product1 = _mm256_mul_epu32(c2[i], factor1);
      c0[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), c1[i]), k0);
      c1[i] = product1;
      c2[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), c3[i]), k1);
      c3[i] = product0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
#pragma GCC unroll 2
  for (int i = 0; i < kGroups; ++i) {
    const __m256i low = _mm256_blend_epi32(c0[i], _mm256_slli_epi64(c1[i], 32), 0xAA);
    const __m256i high = _mm256_blend_epi32(c2[i], _mm256_slli_epi64(c3[i], 32), 0xAA);
    auto* const to = reinterpret_cast<__m256i*>(out + 32 * i);
    _mm256_store_si256(to, _mm256_unpacklo_epi64(low, high));
    _mm256_store_si256(to + 1, _mm256_unpackhi_epi64(low, high));
  }
}

GRADWIRE_AVX2 inline __attribute__((always_inline)) void philox_run_avx2(PhiloxCounter first,
                                                                         uint64_t key,
                                                                         uint16_t* out) {
  for (uint32_t group = 0; group < 4; ++group) {
    PhiloxCounter counter = first;
    counter.word[0] += 8 * group;
    philox_groups_avx2(counter, key, out + 64 * group);
  }
}

}  // namespace gradwire::cpu

#endif
