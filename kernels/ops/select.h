#pragma once
// The k largest of n elements by magnitude, exactly: the same set for any number of threads.

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/core/thread_pool.h"

namespace gradwire::cpu {

/// Elements of a selection chunk.
inline constexpr size_t kSelectChunk = 4096;

/// What is selected from: x = g + e, in float32.
struct SelectInput {
  ConstGradient g;
  std::span<const float> e = {};  ///< empty: x = g
  /// Becomes x with zeros at what is chosen. As long as e, and other memory than e; where e is
  /// empty and g float32, g's own memory may be given: x is then changed in place, and keeps every
  /// bit where it is not finite.
  std::span<float> e_next = {};
  size_t k = 0;

  bool in_place() const { return e.empty() && !e_next.empty(); }
};

/// The chosen elements, chunk by chunk; within a chunk indices increase.
struct Selection {
  struct Chunk {
    size_t first;  ///< its first entry in `indices` and `values`
    uint32_t count;
  };
  std::span<const Chunk> chunks;
  std::span<const uint16_t> indices;  ///< within the chunk
  std::span<const float> values;      ///< x there
  size_t total = 0;
  bool finite = true;   ///< false: x holds NaN or infinity and nothing is chosen
  bool sampled = true;  ///< false: a sample misled, and counting everything took longer
};

/// Chooses the k largest |x[i]|; of equal ones those with the smaller index. Zeros are never
/// chosen, so fewer than k may be. What it returns, and its scratch memory, lie in `frame`; how
/// much that is follows from n and k alone.
Selection select_largest(const SelectInput& input, Workspace::Frame& frame, ThreadPool& pool);

/// Chooses the k largest |x[i]| of every chunk on its own, of a shorter last one
/// kept_in_chunk(k, len); else as select_largest(). 1 <= k <= kSelectChunk.
Selection select_largest_in_chunks(const SelectInput& input, Workspace::Frame& frame,
                                   ThreadPool& pool);

/// What reaches a threshold, as far as there is room.
struct Reach {
  float threshold;     ///< above 0
  size_t capacity;     ///< at most so many are chosen
  size_t first_chunk;  ///< when more reach it, those from this chunk on, around to the one before
};
struct Reached {
  Selection chosen;
  size_t count;  ///< elements that reach the threshold, chosen or not
};

/// Chooses every |x[i]| >= threshold, and leaves in e_next what finds no room; k is not read.
Reached select_reaching(const SelectInput& input, const Reach& reach, Workspace::Frame& frame,
                        ThreadPool& pool);

/// The k-th largest of `magnitudes` (bits of |x|; 1 <= k <= size). `scratch` is of the same size.
uint32_t kth_largest(std::span<const uint32_t> magnitudes, size_t k, std::span<uint32_t> scratch);

}  // namespace gradwire::cpu
