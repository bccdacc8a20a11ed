#pragma once
// Blocks of 256 elements through registers: one load of g and e, one store of codes and e_next.
// quantize_cpu.cc calls these where the machine has the instructions; bits are those of its loops.

#include <cstddef>

#include "gradwire/kernels/core/dtype.h"
#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/quantize.h"
#include "gradwire/kernels/ops/quantize_element.h"

namespace gradwire::cpu {

inline constexpr size_t kFusedBlock = 256;

/// Whole blocks of 256.
struct FusedBlocks {
  const std::byte* g;
  DType dtype;
  const float* e;     ///< null: x = g
  float* e_next;      ///< null: not wanted
  std::byte* scales;  ///< any address
  std::byte* codes;   ///< any address
  const uint16_t* random;  ///< null: drawn from `run`
  RandomRun run;
  size_t blocks;
  int levels;      ///< 0: codes go up to the largest
  bool streaming;  ///< e_next lies on multiples of 64 bytes and goes past the caches, as `out`
                   ///< below: other threads read it after finish_streaming() (isa.h)
};

/// What the fused decoders sum, block by block.
struct FusedSum {
  std::span<const EncodedBlocks> parts;
  float factor;
  float* out;
  size_t blocks;
  bool streaming;
};

struct CodeKind {
  int bits;
  CodeFormat format;
  bool has_levels = false;
};

/// f(Code<bits, format>()).
template <class F>
auto with_code(CodeKind kind, const F& f) {
  switch (kind.format) {
    case CodeFormat::kE4M3:
      return f(Code<8, CodeFormat::kE4M3>());
    case CodeFormat::kE5M2:
      return f(Code<8, CodeFormat::kE5M2>());
    case CodeFormat::kPowerOfTwo:
      return f(Code<8, CodeFormat::kPowerOfTwo>());
    case CodeFormat::kInteger:
      break;
  }
  constexpr CodeFormat kInteger = CodeFormat::kInteger;
  if (kind.has_levels) {
    return kind.bits == 8   ? f(Code<8, kInteger, true>())
           : kind.bits == 4 ? f(Code<4, kInteger, true>())
                            : f(Code<2, kInteger, true>());
  }
  switch (kind.bits) {
    case 8:
      return f(Code<8>());
    case 4:
      return f(Code<4>());
    default:
      return f(Code<2>());
  }
}

#ifdef GRADWIRE_X86
/// @returns false when a block holds NaN or infinity.
bool encode_blocks_avx512(const FusedBlocks& in, CodeKind kind, bool stochastic);
bool encode_blocks_avx2(const FusedBlocks& in, CodeKind kind, bool stochastic);

/// out = factor * (parts added in order, from 0 on).
void sum_blocks_avx512(const FusedSum& sum, CodeKind kind);
void sum_blocks_avx2(const FusedSum& sum, CodeKind kind);
#endif

}  // namespace gradwire::cpu
