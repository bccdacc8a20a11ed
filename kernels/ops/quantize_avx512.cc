// The fused quantizers with AVX-512: a block of 256 stays in sixteen registers.

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

/// The largest |x| as bits.
GRADWIRE_INLINE_AVX512 uint32_t largest_of(const __m512 (&x)[kVectors]) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i largest[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) {
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x[j]), magnitude);
    largest[j % 2] = _mm512_max_epi32(largest[j % 2], bits);
  }
  return static_cast<uint32_t>(
      _mm512_reduce_max_epi32(_mm512_max_epi32(largest[0], largest[1])));
}

/// The sum of the squares of factor * x, in the order that quantize.h gives.
GRADWIRE_INLINE_AVX512 float squares_of(const __m512 (&x)[kVectors], float factor) {
  const __m512 scale = _mm512_set1_ps(factor);
  __m512 sums[kVectors];  // of eights, each in eight lanes
#pragma GCC unroll 16
  for (int j = 0; j < kVectors; ++j) {
    const __m512 t = _mm512_mul_ps(x[j], scale);
    __m512 sum = _mm512_mul_ps(t, t);
    sum = _mm512_add_ps(sum, _mm512_shuffle_f32x4(sum, sum, _MM_SHUFFLE(2, 3, 0, 1)));
    sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    sums[j] = _mm512_add_ps(sum, _mm512_permute_ps(sum, _MM_SHUFFLE(2, 3, 0, 1)));
  }
#pragma GCC unroll 4
  for (int width = kVectors / 2; width > 0; width /= 2) {
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) {
      sums[j] = _mm512_add_ps(sums[j], sums[j + width]);
    }
  }
  return _mm_cvtss_f32(_mm_add_ss(_mm512_castps512_ps128(sums[0]),
                                  _mm512_extractf32x4_ps(sums[0], 2)));
}

GRADWIRE_INLINE_AVX512 __m512 uniform16(const uint16_t* random) {
  const __m512i drawn =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(random)));
  return _mm512_mul_ps(_mm512_add_ps(_mm512_cvtepi32_ps(drawn), _mm512_set1_ps(0.5f)),
                       _mm512_set1_ps(0x1p-16f));
}

template <int kBits>
GRADWIRE_INLINE_AVX512 void store_codes(std::byte* out, __m512i codes) {
  if constexpr (kBits == 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(codes));
  } else if constexpr (kBits == 4) {
    const __m512i nibbles = _mm512_and_si512(codes, _mm512_set1_epi32(15));
    const __m512i pairs = _mm512_or_si512(nibbles, _mm512_srli_epi64(nibbles, 28));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm512_cvtepi64_epi8(pairs));
  } else {
    const __m128i crumbs =
        _mm_and_si128(_mm512_cvtepi32_epi8(codes), _mm_set1_epi8(3));
    const __m128i pairs = _mm_maddubs_epi16(crumbs, _mm_set1_epi16(0x0401));
    const __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(0x00100001));
    const int packed = _mm_cvtsi128_si32(_mm_cvtepi32_epi8(fours));
    std::memcpy(out, &packed, sizeof packed);
  }
}

/// What codes say, before their scale.
template <class C>
GRADWIRE_INLINE_AVX512 __m512 values_of(__m512i codes) {
  if constexpr (C::kIsInteger) {
    return _mm512_cvtepi32_ps(codes);
  } else {
    return small_values16<C::kFormat>(codes);
  }
}

/// A block's 256 numbers: those the caller has drawn, or drawn into `room` now.
GRADWIRE_INLINE_AVX512 const uint16_t* random_of(const FusedBlocks& in, size_t at, uint16_t* room) {
  if (in.random != nullptr) {
    return in.random + at;
  }
  const uint64_t element = in.run.first + at;
  if (element % 8 == 0) {
    const RoundingStream& s = in.run.stream;
    philox_run_avx512(rounding_counter(element, s.step, s.parameter, s.rank_stage), s.seed, room);
  } else {
    random_halves(in.run.stream, element, {room, kFusedBlock});
  }
  return room;
}

template <class C, bool kStochastic>
GRADWIRE_AVX512 bool encode(const FusedBlocks& in) {
  constexpr int kBits = C::kBits;
  constexpr size_t kCodeBytes = 2 * kBits;  // of 16 elements
  const int limit = C::kHasLevels ? in.levels : largest_code(kBits);
  const __m512i lowest = _mm512_set1_epi32(-limit);
  const __m512i highest = _mm512_set1_epi32(limit);
  alignas(64) uint16_t room[kFusedBlock];
  bool finite = true;
  for (size_t block = 0; block < in.blocks; ++block) {
    const size_t at = block * kFusedBlock;
    const uint16_t* const random = kStochastic ? random_of(in, at, room) : nullptr;
    __m512 x[kVectors];
    load_block(in, at, x);
    const uint32_t bits = largest_of(x);
    finite = finite && bits <= kFiniteBits;
    BlockScale s;
    if constexpr (C::kHasLevels) {
      const float factor = square_factor(bits);
      s = norm_scale(bits, squares_of(x, factor), factor, limit);
    } else {
      s = block_scale_of(C::kFormat, kBits, bits);
    }
    const __mmask16 sent = s.scale > 0 ? 0xFFFF : 0;  // none of a block that counts as zero
    std::memcpy(in.scales + 4 * block, &s.scale, 4);
    const __m512 scale = _mm512_set1_ps(s.scale);
    const __m512 inverse = _mm512_set1_ps(s.inverse);
    std::byte* const codes = in.codes + block * kCodeBytes * kVectors;
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      const __m512 y = _mm512_mul_ps(x[j], inverse);
      __m512i code;
      if constexpr (!C::kIsInteger) {
        const __m512 uniform = kStochastic ? uniform16(random + 16 * j) : _mm512_setzero_ps();
        code = _mm512_maskz_mov_epi32(sent, small_codes16<C::kFormat, kStochastic>(y, uniform));
      } else if constexpr (kStochastic) {
        code = _mm512_maskz_cvt_roundps_epi32(sent, _mm512_add_ps(y, uniform16(random + 16 * j)),
                                              _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        code = _mm512_min_epi32(_mm512_max_epi32(code, lowest), highest);
      } else {
        code = _mm512_maskz_cvt_roundps_epi32(sent, y,
                                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      }
      store_codes<kBits>(codes + kCodeBytes * j, code);
      const __m512 left = _mm512_sub_ps(x[j], _mm512_mul_ps(values_of<C>(code), scale));
      store_left(in, at + 16 * j, left);
    }
  }
  return finite;
}

/// Sixteen values of a block, code * scale. Codes of 4 and 2 bits are looked up in `products`.
template <class C>
GRADWIRE_INLINE_AVX512 __m512 load_values(const std::byte* from, __m512 scale, __m512 products) {
  if constexpr (C::kBits == 8) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_mul_ps(values_of<C>(_mm512_cvtepi8_epi32(codes)), scale);
  } else if constexpr (C::kBits == 4) {
    // Both halves of 64 bits in turn: sixteen_in_order() undoes that once for all parts.
    const __m512i words =
        _mm512_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const __m512i shift =
        _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    // The look-up sees the lowest four bits alone.
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), products);
  } else {
    const __m512i words = _mm512_broadcastd_epi32(_mm_loadu_si32(from));
    const __m512i shift =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), products);
  }
}

template <int kBits>
GRADWIRE_INLINE_AVX512 __m512 sixteen_in_order(__m512 values) {
  const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  return kBits == 4 ? _mm512_permutexvar_ps(order, values) : values;
}

/// The products of all codes with the scale, by the codes' bits (at 2 bits whatever bits follow).
template <int kBits>
GRADWIRE_INLINE_AVX512 __m512 products_of(__m512 scale) {
  const __m512i codes =
      kBits == 4 ? _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
                 : _mm512_setr_epi32(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(codes), scale);
}

template <class C>
GRADWIRE_AVX512 void sum_blocks(const FusedSum& sum) {
  constexpr int kBits = C::kBits;
  constexpr size_t kCodeBytes = 2 * kBits;
  const __m512 factor = _mm512_set1_ps(sum.factor);
  for (size_t block = 0; block < sum.blocks; ++block) {
    __m512 total[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      total[j] = _mm512_setzero_ps();
    }
    for (const EncodedBlocks& part : sum.parts) {
      float scale_value;
      std::memcpy(&scale_value, part.scales + 4 * block, 4);
      const __m512 scale = _mm512_set1_ps(scale_value);
      const __m512 products = products_of<kBits>(scale);
      const std::byte* const codes = part.codes + block * kCodeBytes * kVectors;
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        total[j] = _mm512_add_ps(total[j],
                                 load_values<C>(codes + kCodeBytes * j, scale, products));
      }
    }
    float* const out = sum.out + block * kFusedBlock;
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      total[j] = sixteen_in_order<kBits>(_mm512_mul_ps(total[j], factor));
    }
    store_block(out, sum.streaming, total);
  }
}

}  // namespace

bool encode_blocks_avx512(const FusedBlocks& in, CodeKind kind, bool stochastic) {
  return with_code(kind, [&](auto code) {
    using C = decltype(code);
    if constexpr (C::kOnlyStochastic) {
      return encode<C, true>(in);
    } else {
      return stochastic ? encode<C, true>(in) : encode<C, false>(in);
    }
  });
}

void sum_blocks_avx512(const FusedSum& sum, CodeKind kind) {
  with_code(kind, [&](auto code) { sum_blocks<decltype(code)>(sum); });
}

}  // namespace gradwire::cpu

#endif
