#pragma once
// Block-wise quantization of float32: a scale per block, and a code per element that is an integer of 8,
// 4 or 2 bits (2 bits: -1, 0 and 1 times the scale) or a float of eight bits (small_float.h).
//
// Integers:
//   scale = max|x| / q,  q = 2^(bits-1) - 1,  over the elements of a block
//   code  = rint(x * (q / max|x|))                  nearest, ties to even
//         = floor(x * (q / max|x|) + (r + 0.5) / 2^16), limited to [-q, q]    stochastic
//   value = code * scale
//
// E4M3 and E5M2: the same with q = 448 and 57344, and with the codes' values in the place of integers.
// Powers of two: scale = 2^floor(log2 max|x|), at most 2^126; code = that of x / scale, stochastic.
// Stochastic floats go away from zero with the probability of what lies above the smaller code.
//
// Levels (QSGD, Alistarh et al., arXiv:1610.02132): integers, stochastic, with q = levels and with the
// block's Euclidean norm in the place of max|x|. The norm, in float32: t = x / 2^e with 2^e <= max|x| <
// 2^(e+1), e from -126 to 126; of each eight elements the squares of t, j and j + 4, j + 2, j + 1; of 32
// such sums (as many as the block has) i and i + 16, i + 8, .., i + 1; those of 256 elements in order;
// the square root, times 2^e, at most FLT_MAX.
//
// A block whose maximum (or norm) is below kSmallestMaximum (of floats: SmallFloat::smallest_maximum) counts as
// zero: scale and codes are 0. Where q * scale would round to infinity the scale is the next smaller
// float.
//
// x - value is exact for nearest codes, so that nothing is lost; but at 2 bits, where max|x| is above
// 2^126 and its reciprocal subnormal, it is so to one rounding.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/ops/random.h"
#include "gradwire/kernels/ops/small_float.h"

namespace gradwire::cpu {

/// Below it 127 / max|x| would be infinite: 127 / FLT_MAX is 3.7322e-37.
inline constexpr float kSmallestMaximum = 3.74e-37f;
static_assert(127.0 / kSmallestMaximum <= std::numeric_limits<float>::max());

constexpr int largest_code(int bits) { return (1 << (bits - 1)) - 1; }

struct Quantizer {
  int bits = 8;
  size_t block = 256;
  std::span<const uint16_t> random;  ///< one number per element: stochastic. Empty: nearest.
  CodeFormat format = CodeFormat::kInteger;
  /// Of integers, at most largest_code(bits), and stochastic: codes up to so many, and in the place
  /// of max|x| the block's Euclidean norm. 0: none of that.
  int levels = 0;
};

/// What quantize() writes; spans the caller does not want stay empty.
struct Quantized {
  std::span<float> scales;   ///< ceil(numel / block)
  std::span<int8_t> codes;   ///< one per element
  std::span<float> decoded;  ///< code * scale; may be empty
};

/// Encodes x. @returns false when x holds NaN or infinity; such blocks are encoded as zero.
bool quantize(std::span<const float> x, const Quantizer& how, const Quantized& out);

/// Consecutive numbers of one parameter: element i of a run takes number `first` + i.
struct RandomRun {
  RoundingStream stream;
  uint64_t first = 0;
};

/// x = g + e in float32, or g where e is empty.
struct Summands {
  ConstTensorView g;
  std::span<const float> e;
};

/// Where quantize_sum() writes; nothing needs to be aligned.
struct QuantizedSum {
  std::byte* scales;        ///< ceil(numel / block) floats
  std::byte* codes;         ///< packed_bytes(numel, bits)
  std::span<float> e_next;  ///< x - code * scale; empty: not wanted
  /// e_next is not read soon: it may go past the caches.
  bool streaming = false;
};

/// quantize() of at most 4096 elements, fused with error feedback and packing: bit for bit what the
/// single steps give. `run`, unless null, says which random numbers how.random would hold.
bool quantize_sum(const Summands& x, const Quantizer& how, const RandomRun* run,
                  const QuantizedSum& out);

/// Scales and packed codes as quantize_sum() writes them.
struct EncodedBlocks {
  const std::byte* scales;
  const std::byte* codes;
};

/// How dequantize_sum() reads its parts and writes their sum.
struct DequantizedSum {
  int bits = 8;
  size_t block = 256;
  float factor = 1.0f;
  bool streaming = false;  ///< as in QuantizedSum
  CodeFormat format = CodeFormat::kInteger;
};

/// out = factor * (the parts' values, added in order from 0 on), at most 4096 elements.
void dequantize_sum(std::span<const EncodedBlocks> parts, const DequantizedSum& how,
                    std::span<float> out);

/// x / scale rounded to nearest and limited to [-limit, limit], for a scale chosen by the caller.
/// Scale 0 gives zeros.
void quantize_with_scale(std::span<const float> x, float scale, int limit, std::span<int8_t> codes);

/// The small floats of x / scale, to nearest, for a scale chosen by the caller. Scale 0 gives zeros.
void round_with_scale(std::span<const float> x, float scale, CodeFormat format,
                      std::span<int8_t> codes);

/// Codes of x / scale, drawn by one number of `random` per element, for a scale chosen by the caller;
/// integers are limited to [-limit, limit]. Scale 0 gives zeros.
void round_by_chance(std::span<const float> x, float scale, CodeFormat format, int limit,
                     std::span<const uint16_t> random, std::span<int8_t> codes);

/// The Euclidean norm of at most 4096 elements, added as those of one block of 4096; all finite.
float norm(std::span<const float> x);

/// out[i] = what codes[i] says, times scale.
void dequantize_with_scale(std::span<const int8_t> codes, float scale, CodeFormat format,
                           std::span<float> out);

/// sum[i] += what codes[i] says, times the scale of i's block.
void add_dequantized(std::span<const int8_t> codes, std::span<const float> scales, size_t block,
                     std::span<float> sum, CodeFormat format = CodeFormat::kInteger);

/// Codes of 8, 4 or 2 bits in two's complement, or of 1 bit (0 and 1), the first element in the lowest
/// bits of a byte; the last byte is padded with zeros.
void pack_codes(std::span<const int8_t> codes, int bits, std::byte* out);
void unpack_codes(const std::byte* packed, int bits, std::span<int8_t> codes);

constexpr size_t packed_bytes(size_t count, int bits) {
  return (count * static_cast<size_t>(bits) + 7) / 8;
}

/// Two's-complement nibbles, low nibble first; the last byte of an odd count is padded with zero.
void pack_nibbles(std::span<const int8_t> codes, std::byte* out);
void unpack_nibbles(const std::byte* packed, std::span<int8_t> codes);

constexpr size_t nibble_bytes(size_t count) { return (count + 1) / 2; }

}  // namespace gradwire::cpu
