#pragma once
// Blocks of 256 elements through registers: one load of g and e, one store of codes and e_next.
// quantize_cpu.cc calls these where the machine has the instructions; bits are those of its loops.

#include <cstddef>
#include <type_traits>

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

/// f(std::integral_constant<int, bits>()) for the widths of codes: 8, 4 or 2 bits.
template <class F>
auto with_bits(int bits, const F& f) {
  switch (bits) {
    case 8:
      return f(std::integral_constant<int, 8>());
    case 4:
      return f(std::integral_constant<int, 4>());
    default:
      return f(std::integral_constant<int, 2>());
  }
}

#ifdef GRADWIRE_X86
/// @returns false when a block holds NaN or infinity.
bool encode_blocks_avx512(const FusedBlocks& in, int bits, bool stochastic);
bool encode_blocks_avx2(const FusedBlocks& in, int bits, bool stochastic);

/// out = factor * (parts added in order, from 0 on).
void sum_blocks_avx512(const FusedSum& sum, int bits);
void sum_blocks_avx2(const FusedSum& sum, int bits);
#endif

}  // namespace gradwire::cpu
