#pragma once
// The k largest of n floats by magnitude, exactly: the same set for any number of threads.

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/thread_pool.h"

namespace gradwire::cpu {

/// Elements of a selection chunk and the 64-bit words that mark them.
inline constexpr size_t kSelectChunk = 4096;
inline constexpr size_t kMaskWords = kSelectChunk / 64;

/// Computes the elements while they are selected from, so that memory is passed over once.
class ElementSource {
 public:
  virtual ~ElementSource() = default;
  /// Makes x[begin, begin + count) valid. Called once per chunk, from any thread.
  virtual void fill(size_t begin, size_t count) const = 0;
  /// The elements from `begin` on, ahead of fill().
  virtual void peek(size_t begin, std::span<float> out) const = 0;
};

struct SelectInput {
  std::span<const float> x;
  size_t k = 0;
  const ElementSource* source = nullptr;  ///< nullptr: x is valid already
};

/// Which elements were chosen, chunk by chunk.
struct Selection {
  std::span<uint64_t> mask;    ///< kMaskWords per chunk; bit i % 64 of word i / 64 is element i
  std::span<uint32_t> counts;  ///< chosen elements of each chunk
  size_t total = 0;
  bool finite = true;  ///< false: x holds NaN or infinity and nothing is chosen
};

/// Marks the k largest |x[i]|; of equal ones those with the smaller index. Zeros are never chosen,
/// so fewer than k may be. What it returns, and its scratch memory, lie in `frame`.
Selection select_largest(const SelectInput& input, Workspace::Frame& frame, ThreadPool& pool);

/// The k-th largest of `magnitudes` (bits of |x|; 1 <= k <= size), and how many are larger.
struct Rank {
  uint32_t value;
  size_t larger;
};
Rank kth_largest(std::span<const uint32_t> magnitudes, size_t k);

/// Writes the positions of the set bits of a chunk's mask, in order. @returns how many.
size_t mask_to_indices(std::span<const uint64_t> mask, std::span<uint16_t> indices);

}  // namespace gradwire::cpu
