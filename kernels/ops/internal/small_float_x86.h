#pragma once
// small_float.h in registers: the same steps, one element in each lane of 32 bits.

#include "gradwire/kernels/ops/internal/blocks_x86.h"

#ifdef GRADWIRE_X86

namespace gradwire::cpu {

/// The codes' int8_t widened to lanes. `uniform`: in (0, 1), where kStochastic.
template <CodeFormat kFormat, bool kStochastic>
GRADWIRE_INLINE_AVX512 __m512i small_codes16(__m512 y, __m512 uniform) {
  constexpr SmallFloat f = small_float(kFormat);
  const __m512i bits = _mm512_castps_si512(y);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  const __m512i lowest = _mm512_set1_epi32(static_cast<int>(exponent_bits(f.lowest_exponent)));
  const __m512i exponent =
      _mm512_max_epi32(_mm512_and_si512(magnitude, _mm512_set1_epi32(0x7F800000)), lowest);
  const __m512i unit = _mm512_sub_epi32(
      _mm512_set1_epi32(static_cast<int>(exponent_bits(127 + f.mantissa_bits))), exponent);
  const __m512 units = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(unit));
  __m512i rounded;
  if constexpr (kStochastic) {
    rounded = _mm512_cvttps_epi32(_mm512_add_ps(units, uniform));
  } else {
    rounded = _mm512_cvt_roundps_epi32(units, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  const __m512i before = _mm512_srli_epi32(_mm512_sub_epi32(exponent, lowest), 23 - f.mantissa_bits);
  const __m512i code =
      _mm512_min_epi32(_mm512_add_epi32(before, rounded), _mm512_set1_epi32(f.largest_code));
  const __m512i sign = _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(~0x7F));
  return _mm512_or_si512(code, sign);
}

template <CodeFormat kFormat>
GRADWIRE_INLINE_AVX512 __m512 small_values16(__m512i code) {
  constexpr SmallFloat f = small_float(kFormat);
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7F));
  const __m512 unit =
      _mm512_set1_ps(std::bit_cast<float>(exponent_bits(f.lowest_exponent - f.mantissa_bits)));
  const __m512 tiny = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), unit);
  const __m512i normal = _mm512_add_epi32(
      _mm512_slli_epi32(magnitude, 23 - f.mantissa_bits),
      _mm512_set1_epi32(static_cast<int>(exponent_bits(f.lowest_exponent - 1))));
  const __mmask16 is_tiny =
      _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(1 << f.mantissa_bits));
  const __m512i value = _mm512_mask_blend_epi32(is_tiny, normal, _mm512_castps_si512(tiny));
  const __m512i sign =
      _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
  return _mm512_castsi512_ps(_mm512_or_si512(value, sign));
}

template <CodeFormat kFormat, bool kStochastic>
GRADWIRE_INLINE_AVX2 __m256i small_codes8(__m256 y, __m256 uniform) {
  constexpr SmallFloat f = small_float(kFormat);
  const __m256i bits = _mm256_castps_si256(y);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i lowest = _mm256_set1_epi32(static_cast<int>(exponent_bits(f.lowest_exponent)));
  const __m256i exponent =
      _mm256_max_epi32(_mm256_and_si256(magnitude, _mm256_set1_epi32(0x7F800000)), lowest);
  const __m256i unit = _mm256_sub_epi32(
      _mm256_set1_epi32(static_cast<int>(exponent_bits(127 + f.mantissa_bits))), exponent);
  const __m256 units = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(unit));
  __m256i rounded;
  if constexpr (kStochastic) {
    rounded = _mm256_cvttps_epi32(_mm256_add_ps(units, uniform));
  } else {
    rounded = _mm256_cvtps_epi32(units);
  }
  const __m256i before = _mm256_srli_epi32(_mm256_sub_epi32(exponent, lowest), 23 - f.mantissa_bits);
  const __m256i code =
      _mm256_min_epi32(_mm256_add_epi32(before, rounded), _mm256_set1_epi32(f.largest_code));
  const __m256i sign = _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(~0x7F));
  return _mm256_or_si256(code, sign);
}

template <CodeFormat kFormat>
GRADWIRE_INLINE_AVX2 __m256 small_values8(__m256i code) {
  constexpr SmallFloat f = small_float(kFormat);
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7F));
  const __m256 unit =
      _mm256_set1_ps(std::bit_cast<float>(exponent_bits(f.lowest_exponent - f.mantissa_bits)));
  const __m256 tiny = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), unit);
  const __m256i normal = _mm256_add_epi32(
      _mm256_slli_epi32(magnitude, 23 - f.mantissa_bits),
      _mm256_set1_epi32(static_cast<int>(exponent_bits(f.lowest_exponent - 1))));
  const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(1 << f.mantissa_bits), magnitude);
  const __m256i value = _mm256_blendv_epi8(normal, _mm256_castps_si256(tiny), is_tiny);
  const __m256i sign =
      _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  return _mm256_castsi256_ps(_mm256_or_si256(value, sign));
}

}  // namespace gradwire::cpu

#endif
