#include "gradwire/kernels/ops/internal/signs_x86.h"

#include "gradwire/kernels/ops/internal/blocks_x86.h"

#ifdef GRADWIRE_X86

#include <cmath>
#include <cstring>

#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kSignBytes = kFusedBlock / 8;

/// Lanes i and i + 4, i + 2, i + 1 of eight.
GRADWIRE_INLINE_AVX2 float fold8(__m256 lanes) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

/// The scale from the sum over a block in memory: `x` is read where the sum is not finite.
inline float scale_from(float sum, const float* x, bool& finite) {
  if (__builtin_expect(std::isfinite(sum), 1)) {
    return sum / static_cast<float>(kFusedBlock);
  }
  finite = finite && all_finite({x, kFusedBlock});
  return scale_of_overflow(x, kFusedBlock);
}

}  // namespace

GRADWIRE_AVX512 bool encode_signs_avx512(const FusedBlocks& in) {
  const __m512 magnitude = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FFFFFFF));
  const __m512 zero = _mm512_setzero_ps();
  bool finite = true;
  for (size_t block = 0; block < in.blocks; ++block) {
    const size_t at = block * kFusedBlock;
    __m512 x[kVectors];
    load_block(in, at, x);
    __m512 lanes[2] = {zero, zero};  // 16 each
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      lanes[j % 2] = _mm512_add_ps(lanes[j % 2], _mm512_and_ps(x[j], magnitude));
    }
    const __m512 sixteen = _mm512_add_ps(lanes[0], lanes[1]);
    const float sum = fold8(
        _mm256_add_ps(_mm512_castps512_ps256(sixteen), _mm512_extractf32x8_ps(sixteen, 1)));
    float scale_value = sum / static_cast<float>(kFusedBlock);
    if (__builtin_expect(!std::isfinite(sum), 0)) {
      alignas(64) float values[kFusedBlock];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        _mm512_store_ps(values + 16 * j, x[j]);
      }
      scale_value = scale_from(sum, values, finite);
    }
    std::memcpy(in.scales + 4 * block, &scale_value, 4);
    const __m512 scale = _mm512_set1_ps(scale_value);
    const __m512 minus = _mm512_set1_ps(-scale_value);
    const auto sent = static_cast<__mmask16>(scale_value == 0 ? 0 : 0xFFFF);
    std::byte* const signs = in.codes + block * kSignBytes;
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      const __mmask16 negative = _mm512_mask_cmp_ps_mask(sent, x[j], zero, _CMP_LT_OQ);
      std::memcpy(signs + 2 * j, &negative, 2);
      const __m512 left = _mm512_sub_ps(x[j], _mm512_mask_blend_ps(negative, scale, minus));
      store_left(in, at + 16 * j, left);
    }
  }
  return finite;
}

GRADWIRE_AVX2 bool encode_signs_avx2(const FusedBlocks& in) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  const __m256 sign = _mm256_set1_ps(-0.0f);
  alignas(64) float x[kFusedBlock];
  bool finite = true;
  for (size_t block = 0; block < in.blocks; ++block) {
    const size_t at = block * kFusedBlock;
    __m256 lanes[4] = {};  // 8 each
    for (size_t i = 0; i < kFusedBlock; i += 32) {
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j) {
        const __m256 value = load8(in, at + i + 8 * j);
        _mm256_store_ps(x + i + 8 * j, value);
        lanes[j] = _mm256_add_ps(lanes[j], _mm256_and_ps(value, magnitude));
      }
    }
    const __m256 low = _mm256_add_ps(lanes[0], lanes[2]);
    const float sum = fold8(_mm256_add_ps(low, _mm256_add_ps(lanes[1], lanes[3])));
    const float scale_value = scale_from(sum, x, finite);
    std::memcpy(in.scales + 4 * block, &scale_value, 4);
    const __m256 scale = _mm256_set1_ps(scale_value);
    const int sent = scale_value == 0 ? 0 : 0xFF;
    const __m256 sent_sign = sent == 0 ? _mm256_setzero_ps() : sign;
    std::byte* const signs = in.codes + block * kSignBytes;
    for (size_t i = 0; i < kFusedBlock; i += 8) {
      const __m256 value = _mm256_load_ps(x + i);
      const __m256 negative = _mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_LT_OQ);
      signs[i / 8] = static_cast<std::byte>(_mm256_movemask_ps(negative) & sent);
      const __m256 sent_value = _mm256_or_ps(scale, _mm256_and_ps(negative, sent_sign));
      const __m256 left = _mm256_sub_ps(value, sent_value);
      if (in.streaming) {
        _mm256_stream_ps(in.e_next + at + i, left);
      } else if (in.e_next != nullptr) {
        _mm256_storeu_ps(in.e_next + at + i, left);
      }
    }
  }
  return finite;
}

GRADWIRE_AVX512 void sum_signs_avx512(const FusedSum& sum) {
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
      const __m512 minus = _mm512_set1_ps(-scale_value);
      const std::byte* const signs = part.codes + block * kSignBytes;
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        __mmask16 negative;
        std::memcpy(&negative, signs + 2 * j, 2);
        total[j] = _mm512_add_ps(total[j], _mm512_mask_blend_ps(negative, scale, minus));
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      total[j] = _mm512_mul_ps(total[j], factor);
    }
    store_block(sum.out + block * kFusedBlock, sum.streaming, total);
  }
}

GRADWIRE_AVX2 void sum_signs_avx2(const FusedSum& sum) {
  constexpr int kLanes = 8;  // vectors of 64 elements, which stay in registers
  const __m256 factor = _mm256_set1_ps(sum.factor);
  // Lane i moves bit i of a byte into its sign.
  const __m256i shift = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  const __m256i sign = _mm256_set1_epi32(INT32_MIN);
  for (size_t at = 0; at < sum.blocks * kFusedBlock; at += 8 * kLanes) {
    __m256 total[kLanes];
#pragma GCC unroll 8
    for (__m256& lane : total) {
      lane = _mm256_setzero_ps();
    }
    for (const EncodedBlocks& part : sum.parts) {
      float scale_value;
      std::memcpy(&scale_value, part.scales + 4 * (at / kFusedBlock), 4);
      const __m256i scale = _mm256_castps_si256(_mm256_set1_ps(scale_value));
#pragma GCC unroll 8
      for (int j = 0; j < kLanes; ++j) {
        const int byte = std::to_integer<int>(part.codes[at / 8 + static_cast<size_t>(j)]);
        const __m256i negative =
            _mm256_and_si256(_mm256_sllv_epi32(_mm256_set1_epi32(byte), shift), sign);
        const __m256 value = _mm256_castsi256_ps(_mm256_xor_si256(scale, negative));
        total[j] = _mm256_add_ps(total[j], value);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < kLanes; ++j) {
      const __m256 value = _mm256_mul_ps(total[j], factor);
      float* const to = sum.out + at + 8 * j;
      sum.streaming ? _mm256_stream_ps(to, value) : _mm256_storeu_ps(to, value);
    }
  }
}

}  // namespace gradwire::cpu

#endif
