#include "gradwire/kernels/ops/signs.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/signs_x86.h"
#include "gradwire/kernels/ops/internal/streaming.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kMostSigns = 4096;  // elements of one call
constexpr size_t kSumLanes = 32;

/// Sum of |x| * factor in the one order. `factor` is a power of two.
GRADWIRE_CLONES float sum_magnitudes(const float* x, size_t count, float factor) {
  float lane[kSumLanes] = {};
  size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (size_t l = 0; l < kSumLanes; ++l) {
      lane[l] += std::fabs(x[i + l]) * factor;
    }
  }
  for (size_t l = 0; i + l < count; ++l) {
    lane[l] += std::fabs(x[i + l]) * factor;
  }
  for (size_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) {
      lane[l] += lane[l + width];
    }
  }
  return lane[0];
}

float scale_of_block(const float* x, size_t count) {
  const float sum = sum_magnitudes(x, count, 1.0f);
  return std::isfinite(sum) ? sum / static_cast<float>(count) : scale_of_overflow(x, count);
}

GRADWIRE_CLONES void subtract_signs(const float* x, size_t count, float scale, float* out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = x[i] - (x[i] < 0 ? -scale : scale);
  }
}

/// Bits of `count` elements into ceil(count / 8) bytes.
void pack_signs(const float* x, size_t count, std::byte* out) {
  for (size_t i = 0; i < count; i += 8) {
    unsigned byte = 0;
    for (size_t j = 0; j < std::min<size_t>(8, count - i); ++j) {
      byte |= (x[i + j] < 0 ? 1u : 0u) << j;
    }
    out[i / 8] = static_cast<std::byte>(byte);
  }
}

/// Blocks one after another, of elements in float32.
bool encode_plain(std::span<const float> x, size_t block, const QuantizedSum& out) {
  for (size_t begin = 0; begin < x.size(); begin += block) {
    const size_t count = std::min(block, x.size() - begin);
    const float* const from = x.data() + begin;
    const float scale = scale_of_block(from, count);
    std::memcpy(out.scales + begin / block * sizeof scale, &scale, sizeof scale);
    std::byte* const signs = out.codes + begin / 8;  // blocks have a multiple of 8 elements
    if (scale == 0) {
      std::fill_n(signs, (count + 7) / 8, std::byte{0});
    } else {
      pack_signs(from, count, signs);
    }
    if (!out.e_next.empty() && scale == 0) {
      std::copy_n(from, count, out.e_next.data() + begin);
    } else if (!out.e_next.empty()) {
      subtract_signs(from, count, scale, out.e_next.data() + begin);
    }
  }
  return all_finite(x);
}

void sum_plain(std::span<const EncodedBlocks> parts, const DequantizedSum& how,
               std::span<float> out, size_t begin) {
  const std::span<float> sum = out.subspan(begin);
  std::ranges::fill(sum, 0.0f);
  for (const EncodedBlocks& part : parts) {
    for (size_t i = 0; i < sum.size(); ++i) {
      const size_t at = begin + i;
      float scale;
      std::memcpy(&scale, part.scales + at / how.block * sizeof scale, sizeof scale);
      const bool negative = (part.codes[at / 8] >> (at % 8) & std::byte{1}) != std::byte{0};
      sum[i] += negative ? -scale : scale;
    }
  }
  multiply(sum, how.factor, sum);
}


/// Blocks that a form with intrinsics takes.
size_t fused_blocks(size_t numel, size_t block) {
  return block == kFusedBlock && isa() != Isa::kPlain ? numel / kFusedBlock : 0;
}

}  // namespace

float scale_of_overflow(const float* x, size_t count) {
  if (!all_finite({x, count})) {
    return 0;
  }
  const float mean = sum_magnitudes(x, count, 0x1p-12f) / static_cast<float>(count);
  return std::min(mean * 0x1p12f, std::numeric_limits<float>::max());
}

float mean_magnitude(std::span<const float> x) {
  assert(x.size() <= kMostSigns);
  return x.empty() ? 0.0f : scale_of_block(x.data(), x.size());
}

namespace {

/// encode_signs() for an e_next that begins a line if it is to be streamed.
bool encode_lines(const Summands& x, size_t block, const QuantizedSum& out) {
  const size_t count = x.g.numel;
  const size_t blocks = fused_blocks(count, block);
  const size_t done = blocks * kFusedBlock;
  bool finite = true;
#ifdef GRADWIRE_X86
  if (blocks > 0) {
    const bool kept = !out.e_next.empty();
    const FusedBlocks in{.g = static_cast<const std::byte*>(x.g.data),
                         .dtype = x.g.dtype,
                         .e = x.e.empty() ? nullptr : x.e.data(),
                         .e_next = kept ? out.e_next.data() : nullptr,
                         .scales = out.scales,
                         .codes = out.codes,
                         .random = nullptr,
                         .run = {},
                         .blocks = blocks,
                         .levels = 0,
                         .streaming = kept && out.streaming};
    finite = isa() == Isa::kAvx512 ? encode_signs_avx512(in) : encode_signs_avx2(in);
  }
#endif
  const size_t rest = count - done;
  if (rest == 0) {
    return finite;
  }
  alignas(64) float values[kMostSigns];
  const std::span<float> sum(values, rest);
  widen(x.g.subview(done, rest), sum);
  if (!x.e.empty()) {
    add(sum, x.e.subspan(done), sum);
  }
  return encode_plain(sum, block,
                      {out.scales + blocks * sizeof(float), out.codes + done / 8,
                       out.e_next.empty() ? out.e_next : out.e_next.subspan(done)}) &&
         finite;
}

}  // namespace

bool encode_signs(const Summands& x, size_t block, const QuantizedSum& out) {
  assert(x.g.numel <= kMostSigns && (x.e.empty() || x.e.size() == x.g.numel));
  if (!out.streaming || out.e_next.empty()) {
    return encode_lines(x, block, {out.scales, out.codes, out.e_next});
  }
  bool finite = true;
  write_lines(out.e_next, true, std::max(block, kStreamedStep),
              [&](size_t begin, std::span<float> e_next, bool streaming) {
                const size_t count = e_next.size();
                const bool all = encode_lines(
                    {x.g.subview(begin, count), x.e.empty() ? x.e : x.e.subspan(begin, count)},
                    block,
                    {out.scales + begin / block * sizeof(float), out.codes + begin / 8, e_next,
                     streaming});
                finite = finite && all;
              });
  return finite;
}

void sum_signs(std::span<const EncodedBlocks> parts, const DequantizedSum& how,
               std::span<float> out) {
  assert(out.size() <= kMostSigns);
  const bool streaming = how.streaming && fused_blocks(out.size(), how.block) > 0 &&
                         parts.size() <= kMostStreamed;
  write_lines(out, streaming, kStreamedStep, [&](size_t begin, std::span<float> to, bool past) {
    EncodedBlocks memory[kMostStreamed];
    std::span<const EncodedBlocks> from = parts;
    if (begin > 0) {
      std::ranges::transform(parts, memory, [&](const EncodedBlocks& part) {
        return EncodedBlocks{part.scales + begin / how.block * sizeof(float),
                             part.codes + begin / 8};
      });
      from = {memory, parts.size()};
    }
    const size_t blocks = fused_blocks(to.size(), how.block);
#ifdef GRADWIRE_X86
    if (blocks > 0) {
      const FusedSum sum{from, how.factor, to.data(), blocks, past};
      isa() == Isa::kAvx512 ? sum_signs_avx512(sum) : sum_signs_avx2(sum);
    }
#else
    (void)past;
#endif
    sum_plain(from, how, to, blocks * kFusedBlock);
  });
}

}  // namespace gradwire::cpu
