#include "gradwire/kernels/ops/internal/cast_avx2.h"

#ifdef GRADWIRE_X86

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define GRADWIRE_INLINE_AVX2 GRADWIRE_AVX2 inline __attribute__((always_inline))

namespace gradwire::cpu {
namespace {

constexpr uint32_t kInfinity = 0x7F800000;
/// Magnitudes above it the instructions round up to infinity (or are infinite, or NaN).
template <class T>
constexpr int32_t kLargest = std::is_same_v<T, float16> ? 0x477FE000 : 0x7F7F0000;

GRADWIRE_INLINE_AVX2 __m256i magnitude_of(__m256 x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

/// Sixteen elements by the scalar definition. @returns false for NaN and infinity.
template <class T>
__attribute__((noinline)) bool narrow_by_definition(const float* source, uint16_t* out) {
  bool finite = true;
  for (size_t i = 0; i < kCastRun; ++i) {
    out[i] = from_float<T>(source[i]).bits;
    finite = finite && (std::bit_cast<uint32_t>(source[i]) & 0x7FFFFFFF) < kInfinity;
  }
  return finite;
}

/// Sixteen elements; those that saturate or are not finite are rare and go by the definition.
template <class T>
GRADWIRE_INLINE_AVX2 __m256i narrow16(__m256 low, __m256 high, bool& finite) {
  constexpr bool kHalf = std::is_same_v<T, float16>;
  const __m256i above =
      _mm256_cmpgt_epi32(_mm256_max_epi32(magnitude_of(low), magnitude_of(high)),
                         _mm256_set1_epi32(kLargest<T>));
  if (__builtin_expect(!_mm256_testz_si256(above, above), 0)) {
    alignas(32) float source[kCastRun];
    alignas(32) uint16_t narrow[kCastRun];
    _mm256_store_ps(source, low);
    _mm256_store_ps(source + 8, high);
    finite = narrow_by_definition<T>(source, narrow) && finite;
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(narrow));
  }
  if constexpr (kHalf) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm256_set_m128i(_mm256_cvtps_ph(high, kNearest), _mm256_cvtps_ph(low, kNearest));
  } else {
    const __m256i half = _mm256_set1_epi32(0x7FFF);
    const __m256i one = _mm256_set1_epi32(1);
    __m256i rounded[2] = {_mm256_castps_si256(low), _mm256_castps_si256(high)};
    for (__m256i& bits : rounded) {
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
      bits = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, half), odd), 16);
    }
    // Packing works within halves of the register.
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded[0], rounded[1]), 0xD8);
  }
}

template <class T>
GRADWIRE_INLINE_AVX2 __m256i narrow16(const float* source, bool& finite) {
  return narrow16<T>(_mm256_loadu_ps(source), _mm256_loadu_ps(source + 8), finite);
}

GRADWIRE_INLINE_AVX2 void store16(std::byte* to, __m256i values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), values);
}

template <class T>
GRADWIRE_AVX2 bool narrow(const float* source, size_t count, bool streaming, std::byte* out) {
  bool finite = true;
  size_t i = 0;
  const uintptr_t misaligned = reinterpret_cast<uintptr_t>(out) % 64;
  if (streaming && misaligned % 32 == 0) {
    if (misaligned == 32 && count > 0) {
      store16(out, narrow16<T>(source, finite));
      i = kCastRun;
    }
    for (; i + 2 * kCastRun <= count; i += 2 * kCastRun) {  // a whole line each time
      const __m256i low = narrow16<T>(source + i, finite);
      const __m256i high = narrow16<T>(source + i + kCastRun, finite);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(out + 2 * i), low);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(out + 2 * i + 32), high);
    }
  }
  for (; i < count; i += kCastRun) {
    store16(out + 2 * i, narrow16<T>(source + i, finite));
  }
  return finite;
}

GRADWIRE_INLINE_AVX2 __m256 load8(const std::byte* from, DType dtype) {
  if (dtype == DType::kFloat32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  }
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return dtype == DType::kFloat16
             ? _mm256_cvtph_ps(halves)
             : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

template <class T>
GRADWIRE_INLINE_AVX2 __m256 widen8(__m128i halves) {
  if constexpr (std::is_same_v<T, float16>) {
    return _mm256_cvtph_ps(halves);
  } else {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
}

template <class T, DType kGradient>
GRADWIRE_AVX2 bool narrow_sum(const SumRun& run) {
  bool finite = true;
  for (size_t i = 0; i < run.count; i += kCastRun) {
    __m256 x[2];
#pragma GCC unroll 2
    for (size_t j = 0; j < 2; ++j) {
      const size_t at = i + 8 * j;
      x[j] = _mm256_add_ps(load8(run.g + size_of(kGradient) * at, kGradient),
                           _mm256_loadu_ps(run.e + at));
    }
    const __m256i sent = narrow16<T>(x[0], x[1], finite);
    store16(run.out + 2 * i, sent);
    const __m256 left[2] = {
        _mm256_sub_ps(x[0], widen8<T>(_mm256_castsi256_si128(sent))),
        _mm256_sub_ps(x[1], widen8<T>(_mm256_extracti128_si256(sent, 1)))};
#pragma GCC unroll 2
    for (size_t j = 0; j < 2; ++j) {
      float* const to = run.left + i + 8 * j;
      run.streaming ? _mm256_stream_ps(to, left[j]) : _mm256_storeu_ps(to, left[j]);
    }
  }
  return finite;
}

template <class T>
bool narrow_sum_as(const SumRun& run) {
  switch (run.dtype) {
    case DType::kFloat16:
      return narrow_sum<T, DType::kFloat16>(run);
    case DType::kBFloat16:
      return narrow_sum<T, DType::kBFloat16>(run);
    default:
      return narrow_sum<T, DType::kFloat32>(run);
  }
}

template <DType kDType>
GRADWIRE_AVX2 bool sum(std::span<const std::byte* const> parts, float factor, bool streaming,
                       std::span<float> out) {
  constexpr int kVectors = 8;  // stay in registers over all parts
  __m256i most = _mm256_setzero_si256();
  const __m256 scale = _mm256_set1_ps(factor);
  for (size_t at = 0; at < out.size(); at += 8 * kVectors) {
    __m256 total[kVectors];
#pragma GCC unroll 8
    for (__m256& lane : total) {
      lane = _mm256_setzero_ps();
    }
    for (const std::byte* const part : parts) {
      const std::byte* const from = part + size_of(kDType) * at;
#pragma GCC unroll 8
      for (size_t j = 0; j < kVectors; ++j) {
        total[j] = _mm256_add_ps(total[j], load8(from + size_of(kDType) * 8 * j, kDType));
      }
    }
    float* const to = out.data() + at;
#pragma GCC unroll 8
    for (size_t j = 0; j < kVectors; ++j) {
      const __m256 value = _mm256_mul_ps(total[j], scale);
      most = _mm256_max_epi32(
          most, _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7FFFFFFF)));
      streaming ? _mm256_stream_ps(to + 8 * j, value) : _mm256_storeu_ps(to + 8 * j, value);
    }
  }
  const __m256i bad = _mm256_cmpgt_epi32(most, _mm256_set1_epi32(kInfinity - 1));
  return _mm256_testz_si256(bad, bad) != 0;
}

}  // namespace

bool narrow_halves_avx2(const float* source, size_t count, bool streaming, std::byte* out) {
  return narrow<float16>(source, count, streaming, out);
}

bool narrow_brains_avx2(const float* source, size_t count, bool streaming, std::byte* out) {
  return narrow<bfloat16>(source, count, streaming, out);
}

GRADWIRE_AVX2 bool copy_floats_avx2(const float* source, size_t count, bool streaming,
                                    std::byte* out) {
  __m256i most = _mm256_setzero_si256();
  const bool past = streaming && reinterpret_cast<uintptr_t>(out) % 32 == 0;
  for (size_t i = 0; i < count; i += 8) {
    const __m256 x = _mm256_loadu_ps(source + i);
    most = _mm256_max_epi32(most, magnitude_of(x));
    auto* const to = reinterpret_cast<float*>(out + 4 * i);
    past ? _mm256_stream_ps(to, x) : _mm256_storeu_ps(to, x);
  }
  const __m256i bad = _mm256_cmpgt_epi32(most, _mm256_set1_epi32(kInfinity - 1));
  return _mm256_testz_si256(bad, bad) != 0;
}

bool narrow_sum_avx2(const SumRun& run) {
  return run.sent == DType::kFloat16 ? narrow_sum_as<float16>(run) : narrow_sum_as<bfloat16>(run);
}

GRADWIRE_AVX2 void widen_halves_avx2(const std::byte* source, size_t count, float* out) {
  for (size_t i = 0; i < count; i += kCastRun) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + 2 * i));
    const __m256i magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7FFF));
    const __m256i nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7C00));
    if (__builtin_expect(!_mm256_testz_si256(nan, nan), 0)) {  // the instruction quiets NaNs
      for (size_t j = i; j < i + kCastRun; ++j) {
        float16 half;
        std::memcpy(&half, source + 2 * j, sizeof half);
        out[j] = to_float(half);
      }
      continue;
    }
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
    _mm256_storeu_ps(out + i + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
  }
}

bool sum_widened_avx2(std::span<const std::byte* const> parts, DType dtype, float factor,
                      bool streaming, std::span<float> out) {
  switch (dtype) {
    case DType::kFloat32:
      return sum<DType::kFloat32>(parts, factor, streaming, out);
    case DType::kFloat16:
      return sum<DType::kFloat16>(parts, factor, streaming, out);
    case DType::kBFloat16:
      return sum<DType::kBFloat16>(parts, factor, streaming, out);
  }
  return false;
}

}  // namespace gradwire::cpu

#endif
