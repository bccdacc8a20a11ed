#pragma once
// The element types of gradients and parameters, their conversions (the same bits on CPU and
// CUDA), and the one switch from a run-time DType to a compile-time type.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "gradwire/kernels/core/error.h"

#if defined(__CUDACC__)
#define GRADWIRE_HOST_DEVICE __host__ __device__
#else
#define GRADWIRE_HOST_DEVICE
#endif

namespace gradwire {

enum class DType : uint8_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

/// IEEE 754 binary16. Storage only; arithmetic happens in float.
struct float16 {
  uint16_t bits;
};

/// The upper half of an IEEE 754 binary32. Storage only; arithmetic happens in float.
struct bfloat16 {
  uint16_t bits;
};

/// Exact: every float16 is a float, and NaN keeps its bits.
GRADWIRE_HOST_DEVICE inline float to_float(float16 h) {
#if defined(__CUDA_ARCH__)
  // A conversion of one instruction, which makes one pattern of every NaN.
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
  const uint32_t nan = static_cast<uint32_t>(h.bits & 0x8000u) << 16 | 0x7F800000u |
                       static_cast<uint32_t>(h.bits & 0x3FFu) << 13;
  return (h.bits & 0x7FFFu) > 0x7C00u ? std::bit_cast<float>(nan) : x;
#else
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000u) << 16;
  const uint32_t exponent = (h.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = h.bits & 0x3FFu;
  if (exponent == 0x1F) {  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  }
  if (exponent == 0) {  // zero and subnormal: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
#endif
}

/// Exact: every bfloat16 is a float.
GRADWIRE_HOST_DEVICE inline float to_float(bfloat16 b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b.bits) << 16);
}

GRADWIRE_HOST_DEVICE inline float to_float(float x) { return x; }

/// Nearest even; a finite value never becomes infinite (it saturates at 65504); NaN stays NaN.
GRADWIRE_HOST_DEVICE inline float16 to_float16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x7F800000u) {  // infinity, or NaN with the quiet bit set
    return {static_cast<uint16_t>(sign | (magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u))};
  }
  if (magnitude >= 0x477FE000u) {  // 65504 and above
    return {static_cast<uint16_t>(sign | 0x7BFFu)};
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal; adding 0.5 rounds at bit 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u))};
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13))};
}

/// Nearest even; a finite value never becomes infinite (it saturates); NaN stays NaN.
GRADWIRE_HOST_DEVICE inline bfloat16 to_bfloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  if (magnitude >= 0x7F7F0000u && magnitude < 0x7F800000u) {
    return {static_cast<uint16_t>(((bits >> 16) & 0x8000u) | 0x7F7Fu)};
  }
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

template <class T>
GRADWIRE_HOST_DEVICE inline T from_float(float x) {
  if constexpr (std::is_same_v<T, float16>) {
    return to_float16(x);
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return to_bfloat16(x);
  } else {
    static_assert(std::is_same_v<T, float>);
    return x;
  }
}

/// Bytes per element.
constexpr size_t size_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

constexpr std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    default:
      return "float32";
  }
}

template <class T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float16>    ? DType::kFloat16
                                  : std::is_same_v<T, bfloat16> ? DType::kBFloat16
                                                                : DType::kFloat32;

/// The one switch on DType: calls `f.template operator()<T>()` with float, float16 or bfloat16.
template <class F>
decltype(auto) dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kFloat16:
      return f.template operator()<float16>();
    case DType::kBFloat16:
      return f.template operator()<bfloat16>();
  }
  throw InvalidArgument(concat("dtype: code is ", static_cast<int>(dtype), ", must be 0, 1 or 2"));
}

}  // namespace gradwire
