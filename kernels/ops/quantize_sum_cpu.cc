// quantize_sum() and dequantize_sum(): whole blocks of 256 in registers where the machine has the
// instructions, everything else by the single steps over a buffer in the first-level cache.

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/quantize_blocks.h"
#include "gradwire/kernels/ops/internal/streaming.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kMost = 4096;         // elements of one call
constexpr size_t kMostScales = kMost;  // blocks have one element at least

/// The single steps, over all elements.
bool quantize_stepwise(const Summands& in, const Quantizer& how, const QuantizedSum& out) {
  const size_t count = in.g.numel;
  alignas(64) float memory[kMost];
  alignas(64) float decoded_memory[kMost];
  alignas(64) int8_t codes[kMost];
  float scales[kMostScales];
  const std::span<float> room(memory, count);
  std::span<const float> x = room;
  if (in.g.dtype == DType::kFloat32 && in.e.empty()) {
    x = in.g.as<float>();
  } else if (in.g.dtype == DType::kFloat32) {
    add(in.g.as<float>(), in.e, room);
  } else {
    widen(in.g, room);
    if (!in.e.empty()) {
      add(room, in.e, room);
    }
  }
  const std::span<float> decoded(decoded_memory, out.e_next.size());
  const size_t blocks = (count + how.block - 1) / how.block;
  const bool finite = quantize(x, how, {{scales, blocks}, {codes, count}, decoded});
  std::memcpy(out.scales, scales, blocks * sizeof(float));
  pack_codes({codes, count}, how.bits, out.codes);
  if (!out.e_next.empty()) {
    subtract(x, decoded, out.e_next);
  }
  return finite;
}

/// Elements [begin, end) of the arguments of quantize_sum(); begin is a multiple of the block.
bool quantize_rest(const Summands& x, const Quantizer& how, const RandomRun* run,
                   const QuantizedSum& out, size_t begin) {
  const size_t count = x.g.numel - begin;
  if (count == 0) {
    return true;
  }
  alignas(64) uint16_t drawn[kMost];
  Quantizer rest = how;
  if (run != nullptr) {
    random_halves(run->stream, run->first + begin, {drawn, count});
    rest.random = {drawn, count};
  } else if (!how.random.empty()) {
    rest.random = how.random.subspan(begin);
  }
  return quantize_stepwise({x.g.subview(begin, count), x.e.empty() ? x.e : x.e.subspan(begin)}, rest,
                           {out.scales + begin / how.block * sizeof(float),
                            out.codes + packed_bytes(begin, how.bits),
                            out.e_next.empty() ? out.e_next : out.e_next.subspan(begin)});
}

bool encode_blocks(const FusedBlocks& blocks, CodeKind kind, bool stochastic) {
#ifdef GRADWIRE_X86
  return isa() == Isa::kAvx512 ? encode_blocks_avx512(blocks, kind, stochastic)
                               : encode_blocks_avx2(blocks, kind, stochastic);
#else
  (void)blocks, (void)kind, (void)stochastic;
  return false;
#endif
}

void sum_blocks(const FusedSum& sum, CodeKind kind) {
#ifdef GRADWIRE_X86
  isa() == Isa::kAvx512 ? sum_blocks_avx512(sum, kind) : sum_blocks_avx2(sum, kind);
#else
  (void)sum, (void)kind;
#endif
}

void dequantize_rest(std::span<const EncodedBlocks> parts, const DequantizedSum& how,
                     std::span<float> out, size_t begin) {
  const std::span<float> sum = out.subspan(begin);
  if (sum.empty()) {
    return;
  }
  const size_t blocks = (sum.size() + how.block - 1) / how.block;
  alignas(64) int8_t codes[kMost];
  float scales[kMostScales];
  std::ranges::fill(sum, 0.0f);
  for (const EncodedBlocks& part : parts) {
    std::memcpy(scales, part.scales + begin / how.block * sizeof(float), blocks * sizeof(float));
    unpack_codes(part.codes + packed_bytes(begin, how.bits), how.bits, {codes, sum.size()});
    add_dequantized({codes, sum.size()}, {scales, blocks}, how.block, sum, how.format);
  }
  multiply(sum, how.factor, sum);
}

/// quantize_sum() for an e_next that begins a line if it is to be streamed.
bool quantize_lines(const Summands& x, const Quantizer& how, const RandomRun* run,
                    const QuantizedSum& out) {
  const size_t count = x.g.numel;
  const bool fused = how.block == kFusedBlock && isa() != Isa::kPlain;
  const size_t blocks = fused ? count / kFusedBlock : 0;
  bool finite = true;
  if (blocks > 0) {
    finite = encode_blocks({.g = static_cast<const std::byte*>(x.g.data),
                            .dtype = x.g.dtype,
                            .e = x.e.empty() ? nullptr : x.e.data(),
                            .e_next = out.e_next.empty() ? nullptr : out.e_next.data(),
                            .scales = out.scales,
                            .codes = out.codes,
                            .random = run == nullptr ? how.random.data() : nullptr,
                            .run = run == nullptr ? RandomRun() : *run,
                            .blocks = blocks,
                            .levels = how.levels,
                            .streaming = out.streaming && !out.e_next.empty()},
                           {how.bits, how.format, how.levels > 0}, run != nullptr || !how.random.empty());
  }
  return quantize_rest(x, how, run, out, blocks * kFusedBlock) && finite;
}

}  // namespace

bool quantize_sum(const Summands& x, const Quantizer& how, const RandomRun* run,
                  const QuantizedSum& out) {
  assert(x.g.numel <= kMost && (x.e.empty() || x.e.size() == x.g.numel));
  assert(out.e_next.empty() || out.e_next.size() == x.g.numel);
  if (!out.streaming || out.e_next.empty()) {
    return quantize_lines(x, how, run, {out.scales, out.codes, out.e_next});
  }
  bool finite = true;
  write_lines(out.e_next, true, std::max(how.block, kStreamedStep),
              [&](size_t begin, std::span<float> e_next, bool streaming) {
                const size_t count = e_next.size();
                Quantizer part = how;
                part.random = how.random.empty() ? how.random : how.random.subspan(begin, count);
                const RandomRun drawn = run == nullptr ? RandomRun()
                                                       : RandomRun{run->stream, run->first + begin};
                const bool all = quantize_lines(
                    {x.g.subview(begin, count), x.e.empty() ? x.e : x.e.subspan(begin, count)},
                    part, run == nullptr ? nullptr : &drawn,
                    {out.scales + begin / how.block * sizeof(float),
                     out.codes + packed_bytes(begin, how.bits), e_next, streaming});
                finite = finite && all;
              });
  return finite;
}

void dequantize_sum(std::span<const EncodedBlocks> parts, const DequantizedSum& how,
                    std::span<float> out) {
  assert(out.size() <= kMost);
  const bool fused = how.block == kFusedBlock && isa() != Isa::kPlain;
  const bool streaming = how.streaming && fused && parts.size() <= kMostStreamed;
  write_lines(out, streaming, kStreamedStep, [&](size_t begin, std::span<float> to, bool past) {
    EncodedBlocks memory[kMostStreamed];
    std::span<const EncodedBlocks> from = parts;
    if (begin > 0) {
      std::ranges::transform(parts, memory, [&](const EncodedBlocks& part) {
        return EncodedBlocks{part.scales + begin / how.block * sizeof(float),
                             part.codes + packed_bytes(begin, how.bits)};
      });
      from = {memory, parts.size()};
    }
    const size_t blocks = fused ? to.size() / kFusedBlock : 0;
    if (blocks > 0) {
      sum_blocks({from, how.factor, to.data(), blocks, past}, {how.bits, how.format});
    }
    dequantize_rest(from, how, to, blocks * kFusedBlock);
  });
}

}  // namespace gradwire::cpu
