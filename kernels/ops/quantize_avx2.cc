// The fused quantizers with AVX2: a block of 256 lies in the first-level cache between its maximum
// and its codes.

#include "gradwire/kernels/ops/internal/blocks_x86.h"
#include "gradwire/kernels/ops/internal/philox_x86.h"
#include "gradwire/kernels/ops/internal/quantize_blocks.h"
#include "gradwire/kernels/ops/internal/small_float_x86.h"

#ifdef GRADWIRE_X86

#include <cstring>

#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/random.h"

namespace gradwire::cpu {
namespace {

/// x = g + e; @returns the largest |x| as bits.
GRADWIRE_INLINE_AVX2 uint32_t load_block(const FusedBlocks& in, size_t at, float* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i largest[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (size_t i = 0; i < kFusedBlock; i += 16) {
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; ++half) {
      const size_t j = i + 8 * half;
      const __m256 value = load8(in, at + j);
      _mm256_store_ps(x + j, value);
      largest[half] = _mm256_max_epi32(
          largest[half], _mm256_and_si256(_mm256_castps_si256(value), magnitude));
    }
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epi32(largest[0], largest[1]));
  uint32_t most = 0;
  for (const uint32_t lane : lanes) {
    most = lane > most ? lane : most;
  }
  return most;
}

/// The sum of the squares of factor * x, in the order that quantize.h gives.
GRADWIRE_INLINE_AVX2 float squares_of(const float* x, float factor) {
  constexpr int kEights = kFusedBlock / 8;
  const __m256 scale = _mm256_set1_ps(factor);
  __m256 sums[kEights];  // each in all lanes
  for (int j = 0; j < kEights; ++j) {
    const __m256 t = _mm256_mul_ps(_mm256_load_ps(x + 8 * j), scale);
    __m256 sum = _mm256_mul_ps(t, t);
    sum = _mm256_add_ps(sum, _mm256_permute2f128_ps(sum, sum, 1));
    sum = _mm256_add_ps(sum, _mm256_permute_ps(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    sums[j] = _mm256_add_ps(sum, _mm256_permute_ps(sum, _MM_SHUFFLE(2, 3, 0, 1)));
  }
  for (int width = kEights / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) {
      sums[j] = _mm256_add_ps(sums[j], sums[j + width]);
    }
  }
  return _mm256_cvtss_f32(sums[0]);
}

GRADWIRE_INLINE_AVX2 __m256 uniform8(const uint16_t* random) {
  const __m256i drawn =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(random)));
  return _mm256_mul_ps(_mm256_add_ps(_mm256_cvtepi32_ps(drawn), _mm256_set1_ps(0.5f)),
                       _mm256_set1_ps(0x1p-16f));
}

/// 32 codes, of which each register holds eight.
template <int kBits>
GRADWIRE_INLINE_AVX2 void store_codes(std::byte* out, const __m256i (&codes)[4]) {
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]),
                                            _mm256_packs_epi32(codes[2], codes[3]));
  // Packing works within halves of a register: this puts the fours back in order.
  const __m256i bytes =
      _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  if constexpr (kBits == 8) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
  } else if constexpr (kBits == 4) {
    const __m256i nibbles = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
    const __m256i pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
    const __m256i joined = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(joined));
  } else {
    const __m256i crumbs = _mm256_and_si256(bytes, _mm256_set1_epi8(3));
    const __m256i pairs = _mm256_maddubs_epi16(crumbs, _mm256_set1_epi16(0x0401));
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001));
    const __m256i words = _mm256_packus_epi32(fours, fours);
    const __m256i joined = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08);
    // Bytes 0-3 of each 64 bits are wanted.
    const __m128i ends = _mm_shuffle_epi32(_mm256_castsi256_si128(joined), 0x08);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), ends);
  }
}

/// What codes say, before their scale.
template <class C>
GRADWIRE_INLINE_AVX2 __m256 values_of(__m256i codes) {
  if constexpr (C::kIsInteger) {
    return _mm256_cvtepi32_ps(codes);
  } else {
    return small_values8<C::kFormat>(codes);
  }
}

/// A block's 256 numbers: those the caller has drawn, or drawn into `room` now.
GRADWIRE_INLINE_AVX2 const uint16_t* random_of(const FusedBlocks& in, size_t at, uint16_t* room) {
  if (in.random != nullptr) {
    return in.random + at;
  }
  const uint64_t element = in.run.first + at;
  if (element % 8 == 0) {
    const RoundingStream& s = in.run.stream;
    philox_run_avx2(rounding_counter(element, s.step, s.parameter, s.rank_stage), s.seed, room);
  } else {
    random_halves(in.run.stream, element, {room, kFusedBlock});
  }
  return room;
}

template <class C, bool kStochastic>
GRADWIRE_AVX2 bool encode(const FusedBlocks& in) {
  constexpr int kBits = C::kBits;
  constexpr size_t kCodeBytes = 4 * kBits;  // of 32 elements
  const int limit = C::kHasLevels ? in.levels : largest_code(kBits);
  const __m256i lowest = _mm256_set1_epi32(-limit);
  const __m256i highest = _mm256_set1_epi32(limit);
  alignas(64) uint16_t room[kFusedBlock];
  alignas(64) float x[kFusedBlock];
  bool finite = true;
  for (size_t block = 0; block < in.blocks; ++block) {
    const size_t at = block * kFusedBlock;
    const uint16_t* const random = kStochastic ? random_of(in, at, room) : nullptr;
    const uint32_t bits = load_block(in, at, x);
    finite = finite && bits <= kFiniteBits;
    BlockScale s;
    if constexpr (C::kHasLevels) {
      const float factor = square_factor(bits);
      s = norm_scale(bits, squares_of(x, factor), factor, limit);
    } else {
      s = block_scale_of(C::kFormat, kBits, bits);
    }
    const int sent = s.scale > 0 ? -1 : 0;  // none of a block that counts as zero
    std::memcpy(in.scales + 4 * block, &s.scale, 4);
    const __m256i mask = _mm256_set1_epi32(sent);
    const __m256 scale = _mm256_set1_ps(s.scale);
    const __m256 inverse = _mm256_set1_ps(s.inverse);
    std::byte* const packed = in.codes + block * kFusedBlock / 8 * kBits;
    for (size_t i = 0; i < kFusedBlock; i += 32) {
      __m256i codes[4];
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j) {
        const __m256 value = _mm256_load_ps(x + i + 8 * j);
        const __m256 y = _mm256_mul_ps(value, inverse);
        if constexpr (!C::kIsInteger) {
          const __m256 uniform = kStochastic ? uniform8(random + i + 8 * j) : _mm256_setzero_ps();
          codes[j] = _mm256_and_si256(small_codes8<C::kFormat, kStochastic>(y, uniform), mask);
        } else if constexpr (kStochastic) {
          const __m256 drawn = _mm256_add_ps(y, uniform8(random + i + 8 * j));
          codes[j] = _mm256_and_si256(_mm256_cvttps_epi32(_mm256_floor_ps(drawn)), mask);
          codes[j] = _mm256_min_epi32(_mm256_max_epi32(codes[j], lowest), highest);
        } else {
          codes[j] = _mm256_and_si256(_mm256_cvtps_epi32(y), mask);
        }
        if (in.e_next != nullptr) {
          const __m256 left =
              _mm256_sub_ps(value, _mm256_mul_ps(values_of<C>(codes[j]), scale));
          float* const to = in.e_next + at + i + 8 * j;
          in.streaming ? _mm256_stream_ps(to, left) : _mm256_storeu_ps(to, left);
        }
      }
      store_codes<kBits>(packed + i / 32 * kCodeBytes, codes);
    }
  }
  return finite;
}

/// Eight codes as floats.
template <class C>
GRADWIRE_INLINE_AVX2 __m256 load_codes(const std::byte* from) {
  if constexpr (C::kBits == 8) {
    return values_of<C>(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  } else if constexpr (C::kBits == 4) {
    int packed;
    std::memcpy(&packed, from, sizeof packed);
    const __m256i shift = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    return _mm256_cvtepi32_ps(
        _mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(packed), shift), 28));
  } else {
    uint16_t packed;
    std::memcpy(&packed, from, sizeof packed);
    const __m256i shift = _mm256_setr_epi32(30, 28, 26, 24, 22, 20, 18, 16);
    return _mm256_cvtepi32_ps(
        _mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(packed), shift), 30));
  }
}

template <class C>
GRADWIRE_AVX2 void sum_blocks(const FusedSum& sum) {
  constexpr int kBits = C::kBits;
  constexpr int kVectors = 8;  // of 64 elements, which stay in registers
  const __m256 factor = _mm256_set1_ps(sum.factor);
  for (size_t at = 0; at < sum.blocks * kFusedBlock; at += 64) {
    __m256 total[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      total[j] = _mm256_setzero_ps();
    }
    for (const EncodedBlocks& part : sum.parts) {
      float scale_value;
      std::memcpy(&scale_value, part.scales + 4 * (at / kFusedBlock), 4);
      const __m256 scale = _mm256_set1_ps(scale_value);
      const std::byte* const codes = part.codes + at / 8 * kBits;
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        total[j] =
            _mm256_add_ps(total[j], _mm256_mul_ps(load_codes<C>(codes + j * kBits), scale));
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const __m256 value = _mm256_mul_ps(total[j], factor);
      float* const to = sum.out + at + 8 * j;
      sum.streaming ? _mm256_stream_ps(to, value) : _mm256_storeu_ps(to, value);
    }
  }
}

}  // namespace

bool encode_blocks_avx2(const FusedBlocks& in, CodeKind kind, bool stochastic) {
  return with_code(kind, [&](auto code) {
    using C = decltype(code);
    if constexpr (C::kOnlyStochastic) {
      return encode<C, true>(in);
    } else {
      return stochastic ? encode<C, true>(in) : encode<C, false>(in);
    }
  });
}

void sum_blocks_avx2(const FusedSum& sum, CodeKind kind) {
  with_code(kind, [&](auto code) { sum_blocks<decltype(code)>(sum); });
}

}  // namespace gradwire::cpu

#endif
