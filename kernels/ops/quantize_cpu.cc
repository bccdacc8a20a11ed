#include "gradwire/kernels/ops/quantize.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/small_float_blocks.h"
#include "gradwire/kernels/ops/run_element.h"

namespace gradwire::cpu {
namespace {

GRADWIRE_CLONES void encode_nearest(const float* x, size_t count, BlockScale s, int8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(round_to_int(x[i] * s.inverse));
  }
}

GRADWIRE_CLONES void encode_nearest_decoded(const float* x, size_t count, BlockScale s,
                                            int8_t* codes, float* decoded) {
  for (size_t i = 0; i < count; ++i) {
    const int32_t code = round_to_int(x[i] * s.inverse);
    codes[i] = static_cast<int8_t>(code);
    decoded[i] = static_cast<float>(code) * s.scale;
  }
}

struct Stochastic {
  const uint16_t* random;
  int32_t limit;
};

GRADWIRE_CLONES void encode_stochastic(const float* x, size_t count, BlockScale s, Stochastic how,
                                       int8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    const int32_t code = floor_to_int(x[i] * s.inverse + uniform_of(how.random[i]));
    codes[i] = static_cast<int8_t>(std::clamp(code, -how.limit, how.limit));
  }
}

GRADWIRE_CLONES void decode_block(const int8_t* codes, size_t count, float scale, float* out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(codes[i]) * scale;
  }
}

GRADWIRE_CLONES void add_block(const int8_t* codes, size_t count, float scale, float* sum) {
  for (size_t i = 0; i < count; ++i) {
    sum[i] += static_cast<float>(codes[i]) * scale;
  }
}

GRADWIRE_CLONES void divide_to_codes(const float* x, size_t count, float scale, int32_t limit,
                                     int8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(std::clamp(round_to_int(x[i] / scale), -limit, limit));
  }
}

GRADWIRE_CLONES void pack_pairs(const int8_t* codes, size_t pairs, uint8_t* out) {
  for (size_t i = 0; i < pairs; ++i) {
    out[i] = static_cast<uint8_t>((codes[2 * i] & 15) | (codes[2 * i + 1] << 4));
  }
}

GRADWIRE_CLONES void pack_fours(const int8_t* codes, size_t fours, uint8_t* out) {
  for (size_t i = 0; i < fours; ++i) {
    out[i] = static_cast<uint8_t>((codes[4 * i] & 3) | ((codes[4 * i + 1] & 3) << 2) |
                                  ((codes[4 * i + 2] & 3) << 4) | ((codes[4 * i + 3] & 3) << 6));
  }
}

void pack_bits(const int8_t* codes, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; i += 8) {
    unsigned byte = 0;
    for (size_t j = 0; j < std::min<size_t>(8, count - i); ++j) {
      byte |= (static_cast<unsigned>(codes[i + j]) & 1u) << j;
    }
    out[i / 8] = static_cast<uint8_t>(byte);
  }
}

GRADWIRE_CLONES void unpack_fours(const uint8_t* packed, size_t fours, int8_t* codes) {
  for (size_t i = 0; i < fours; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      codes[4 * i + j] = static_cast<int8_t>((((packed[i] >> (2 * j)) & 3) ^ 2) - 2);
    }
  }
}

GRADWIRE_CLONES void unpack_pairs(const uint8_t* packed, size_t pairs, int8_t* codes) {
  for (size_t i = 0; i < pairs; ++i) {
    codes[2 * i] = static_cast<int8_t>(((packed[i] & 15) ^ 8) - 8);
    codes[2 * i + 1] = static_cast<int8_t>(static_cast<int8_t>(packed[i]) >> 4);
  }
}

/// Sums of the squares of eight elements each, in their order; elements that are not there count as 0.
GRADWIRE_CLONES void square_eights(const float* x, size_t count, float factor, float* sums) {
  for (size_t begin = 0; begin < count; begin += 8) {
    float t[8] = {};
    for (size_t j = 0; j < std::min<size_t>(8, count - begin); ++j) {
      t[j] = x[begin + j] * factor;
    }
    for (float& y : t) {
      y *= y;
    }
    const float even = (t[0] + t[4]) + (t[2] + t[6]);
    const float odd = (t[1] + t[5]) + (t[3] + t[7]);
    sums[begin / 8] = even + odd;
  }
}

/// The sum of the squares of factor * x, in the order of a block.
float squares_of(std::span<const float> x, float factor, size_t block) {
  constexpr size_t kRun = 256;
  float squares = 0;
  for (size_t begin = 0; begin < x.size(); begin += kRun) {
    float sums[kRun / 8] = {};
    square_eights(x.data() + begin, std::min(kRun, x.size() - begin), factor, sums);
    for (size_t width = std::min(block, kRun) / 16; width > 0; width /= 2) {
      for (size_t i = 0; i < width; ++i) {
        sums[i] += sums[i + width];
      }
    }
    squares += sums[0];
  }
  return squares;
}

BlockScale scale_by_norm(std::span<const float> x, uint32_t maximum_bits, const Quantizer& how) {
  const float factor = square_factor(maximum_bits);
  return norm_scale(maximum_bits, squares_of(x, factor, how.block), factor, how.levels);
}

void encode_block(std::span<const float> x, const Quantizer& how, size_t begin, BlockScale s,
                  const Quantized& out) {
  int8_t* const codes = out.codes.data() + begin;
  const float* const block = x.data() + begin;
  const size_t count = std::min(how.block, x.size() - begin);
  const uint16_t* const random = how.random.empty() ? nullptr : how.random.data() + begin;
  if (how.format != CodeFormat::kInteger) {
    const SmallFloat format = small_float(how.format);
    encode_small_floats(block, count, s, format, random, codes);
    if (!out.decoded.empty()) {
      decode_small_floats(codes, count, s.scale, format, out.decoded.data() + begin);
    }
  } else if (how.random.empty() && out.decoded.empty()) {
    encode_nearest(block, count, s, codes);
  } else if (how.random.empty()) {
    encode_nearest_decoded(block, count, s, codes, out.decoded.data() + begin);
  } else {
    const int limit = how.levels > 0 ? how.levels : largest_code(how.bits);
    encode_stochastic(block, count, s, {random, limit}, codes);
    if (!out.decoded.empty()) {
      decode_block(codes, count, s.scale, out.decoded.data() + begin);
    }
  }
}

}  // namespace

bool quantize(std::span<const float> x, const Quantizer& how, const Quantized& out) {
  assert(out.codes.size() == x.size());
  bool finite = true;
  for (size_t begin = 0; begin < x.size(); begin += how.block) {
    const size_t count = std::min(how.block, x.size() - begin);
    const uint32_t bits = max_magnitude_bits(x.subspan(begin, count));
    finite = finite && bits <= kFiniteBits;
    const BlockScale scale = how.levels > 0
                                 ? scale_by_norm(x.subspan(begin, count), bits, how)
                                 : block_scale_of(how.format, how.bits, bits);
    if (scale.scale == 0) {
      out.scales[begin / how.block] = 0;
      std::fill_n(out.codes.data() + begin, count, int8_t{0});
      if (!out.decoded.empty()) {
        std::fill_n(out.decoded.data() + begin, count, 0.0f);
      }
      continue;
    }
    out.scales[begin / how.block] = scale.scale;
    encode_block(x, how, begin, scale, out);
  }
  return finite;
}

void quantize_with_scale(std::span<const float> x, float scale, int limit,
                         std::span<int8_t> codes) {
  assert(codes.size() == x.size());
  if (scale == 0) {
    std::ranges::fill(codes, int8_t{0});
    return;
  }
  divide_to_codes(x.data(), x.size(), scale, limit, codes.data());
}

void round_by_chance(std::span<const float> x, float scale, CodeFormat format, int limit,
                     std::span<const uint16_t> random, std::span<int8_t> codes) {
  assert(codes.size() == x.size() && random.size() == x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    codes[i] =
        static_cast<int8_t>(run_code_by_chance(format, limit, x[i], scale, random[i]));
  }
}

float norm(std::span<const float> x) {
  constexpr size_t kMost = 4096;
  const float factor = square_factor(max_magnitude_bits(x));
  return std::bit_cast<float>(norm_bits(squares_of(x, factor, kMost), factor));
}

void dequantize_with_scale(std::span<const int8_t> codes, float scale, CodeFormat format,
                           std::span<float> out) {
  assert(codes.size() == out.size());
  if (format == CodeFormat::kInteger) {
    decode_block(codes.data(), codes.size(), scale, out.data());
  } else {
    decode_small_floats(codes.data(), codes.size(), scale, small_float(format), out.data());
  }
}

void add_dequantized(std::span<const int8_t> codes, std::span<const float> scales, size_t block,
                     std::span<float> sum, CodeFormat format) {
  assert(codes.size() == sum.size());
  for (size_t begin = 0; begin < sum.size(); begin += block) {
    const size_t count = std::min(block, sum.size() - begin);
    const float scale = scales[begin / block];
    if (format == CodeFormat::kInteger) {
      add_block(codes.data() + begin, count, scale, sum.data() + begin);
    } else {
      add_small_floats(codes.data() + begin, count, scale, small_float(format), sum.data() + begin);
    }
  }
}

void pack_nibbles(std::span<const int8_t> codes, std::byte* out) {
  auto* bytes = reinterpret_cast<uint8_t*>(out);
  const size_t pairs = codes.size() / 2;
  pack_pairs(codes.data(), pairs, bytes);
  if (codes.size() % 2 == 1) {
    bytes[pairs] = static_cast<uint8_t>(codes.back() & 15);
  }
}

void unpack_nibbles(const std::byte* packed, std::span<int8_t> codes) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(packed);
  const size_t pairs = codes.size() / 2;
  unpack_pairs(bytes, pairs, codes.data());
  if (codes.size() % 2 == 1) {
    codes.back() = static_cast<int8_t>(((bytes[pairs] & 15) ^ 8) - 8);
  }
}

void pack_codes(std::span<const int8_t> codes, int bits, std::byte* out) {
  if (bits == 8) {
    std::memcpy(out, codes.data(), codes.size());
    return;
  }
  if (bits == 4) {
    pack_nibbles(codes, out);
    return;
  }
  if (bits == 1) {
    pack_bits(codes.data(), codes.size(), reinterpret_cast<uint8_t*>(out));
    return;
  }
  const size_t fours = codes.size() / 4;
  pack_fours(codes.data(), fours, reinterpret_cast<uint8_t*>(out));
  if (const size_t rest = codes.size() % 4; rest > 0) {
    int8_t last[4] = {};
    std::copy_n(codes.end() - static_cast<std::ptrdiff_t>(rest), rest, last);
    pack_fours(last, 1, reinterpret_cast<uint8_t*>(out + fours));
  }
}

void unpack_codes(const std::byte* packed, int bits, std::span<int8_t> codes) {
  if (bits == 8) {
    std::memcpy(codes.data(), packed, codes.size());
    return;
  }
  if (bits == 4) {
    unpack_nibbles(packed, codes);
    return;
  }
  if (bits == 1) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(packed);
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<int8_t>(bytes[i / 8] >> (i % 8) & 1);
    }
    return;
  }
  const size_t fours = codes.size() / 4;
  unpack_fours(reinterpret_cast<const uint8_t*>(packed), fours, codes.data());
  if (const size_t rest = codes.size() % 4; rest > 0) {
    int8_t last[4];
    unpack_fours(reinterpret_cast<const uint8_t*>(packed + fours), 1, last);
    std::copy_n(last, rest, codes.end() - static_cast<std::ptrdiff_t>(rest));
  }
}

}  // namespace gradwire::cpu
