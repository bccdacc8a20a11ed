#pragma once
// Block-wise linear quantization of float32 to 8 or 4 bits.
//
//   scale = max|x| / q,  q = 2^(bits-1) - 1,  over the elements of a block
//   code  = rint(x * (q / max|x|))                  nearest, ties to even
//         = floor(x * (q / max|x|) + (r + 0.5) / 2^16), limited to [-q, q]    stochastic
//   value = code * scale
//
// A block whose maximum is below kSmallestMaximum counts as zero: scale and codes are 0. Where
// q * scale would round to infinity the scale is the next smaller float.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace gradwire::cpu {

/// Below it 127 / max|x| would be infinite: 127 / FLT_MAX is 3.7322e-37.
inline constexpr float kSmallestMaximum = 3.74e-37f;
static_assert(127.0 / kSmallestMaximum <= std::numeric_limits<float>::max());

constexpr int largest_code(int bits) { return (1 << (bits - 1)) - 1; }

struct Quantizer {
  int bits = 8;
  size_t block = 256;
  std::span<const uint16_t> random;  ///< one number per element: stochastic. Empty: nearest.
};

/// What quantize() writes; spans the caller does not want stay empty.
struct Quantized {
  std::span<float> scales;   ///< ceil(numel / block)
  std::span<int8_t> codes;   ///< one per element
  std::span<float> decoded;  ///< code * scale; may be empty
};

/// Encodes x. @returns false when x holds NaN or infinity; such blocks are encoded as zero.
bool quantize(std::span<const float> x, const Quantizer& how, const Quantized& out);

/// x / scale rounded to nearest and limited to [-limit, limit], for a scale chosen by the caller.
/// Scale 0 gives zeros.
void quantize_with_scale(std::span<const float> x, float scale, int limit, std::span<int8_t> codes);

/// sum[i] += codes[i] * scale of i's block.
void add_dequantized(std::span<const int8_t> codes, std::span<const float> scales, size_t block,
                     std::span<float> sum);

/// Two's-complement nibbles, low nibble first; the last byte of an odd count is padded with zero.
void pack_nibbles(std::span<const int8_t> codes, std::byte* out);
void unpack_nibbles(const std::byte* packed, std::span<int8_t> codes);

constexpr size_t nibble_bytes(size_t count) { return (count + 1) / 2; }

}  // namespace gradwire::cpu
