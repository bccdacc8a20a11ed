#pragma once
// What a sparse body on a GPU is made of; kernels/compress/WIRE_FORMAT.md has the bytes.

#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/ops/blocks.h"

namespace gradwire::cuda {

/// How the values of a sparse body are stored.
enum class SparseValues : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt4,
  kE4M3,
  kE5M2,
  kInt2,
  kSign,
  kPowerOfTwo,
};

/// What its indices are.
enum class SparseIndices : uint8_t {
  kPacked,  ///< 12 bits per entry
  kBitmap,  ///< one bit per element
  kBlocks,  ///< 12 bits per block
};

struct SparseFormat {
  SparseValues values = SparseValues::kFloat32;
  bool bitmap = false;  ///< indices: one bit per element; else 12 bits per entry
  /// In the place of `bitmap`: payloads whose header's variant is below have bitmaps, others not.
  /// The variant is known on the device alone: kernels of both kinds are launched, and one leaves.
  bool by_variant = false;
  uint32_t bitmap_variants = 0;
  int levels = 0;      ///< of integers, written by chance: scaled by the norm; 0: by the maximum
  BlockGrid blocks{};  ///< what indices say, its segments in device memory; width 0: elements
};

}  // namespace gradwire::cuda
