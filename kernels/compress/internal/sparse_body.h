#pragma once
// The body of sparse payloads: counts, scales, indices and values of each chunk, as WIRE_FORMAT.md
// lays them out. Shared by every compressor that selects.

#include <algorithm>

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/value_run.h"
#include "gradwire/kernels/ops/blocks.h"

namespace gradwire {

enum class IndexCodec : uint8_t {
  kTwelveBit,  ///< 12 bits per entry
  kBitmap,     ///< 1 bit per element of the group
  kBlocks,     ///< 12 bits per block, or part of one in a chunk
};

/// The smaller one, from the spec and the shape of the whole group alone.
constexpr IndexCodec sparse_index_codec(size_t kept, size_t numel) {
  return kept > numel / 12 ? IndexCodec::kBitmap : IndexCodec::kTwelveBit;
}

/// Elements of a region's chunk `index`.
constexpr size_t chunk_length(size_t region_numel, size_t index) {
  return region_numel - index * kChunk < kChunk ? region_numel - index * kChunk : kChunk;
}

constexpr size_t pad_to_4(size_t bytes) { return (bytes + 3) & ~size_t{3}; }

inline void zero_bytes(std::byte* body, size_t begin, size_t end) {
  std::fill(body + begin, body + end, std::byte{0});
}

class SparseBody {
 public:
  /// `grid`: of kBlocks; what it points at lives as long.
  SparseBody(const ValueRun& values, IndexCodec indices, const BlockGrid& grid = {});

  IndexCodec indices() const { return indices_; }
  /// Whether write_chunk() needs a random number per value.
  bool draws() const { return values_.draws(); }

  /// The most that a body holds: entries, and indices, which are as many but for kBlocks.
  struct Most {
    size_t entries;
    size_t indices;
  };
  /// Upper bound for a region of `numel` elements.
  size_t capacity_bytes(size_t numel, Most most) const;

  /// Of kBlocks: how many indices the entries of a chunk take, whose first element is `begin` of the
  /// group. 0 of the others.
  uint32_t count_blocks(uint64_t begin, std::span<const uint16_t> indices) const;

  /// Fills where each chunk's indices and values begin from the counts. @returns the body's bytes.
  size_t lay_out(size_t numel, std::span<ChunkPlace> places) const;

  /// Writes the counts and all padding.
  void write_counts(size_t numel, std::span<const ChunkPlace> places, std::byte* body) const;

  struct ChunkRef {
    std::span<const ChunkPlace> places;
    Region region;
    size_t index;  ///< of the chunk in the region
  };
  /// The chosen elements of one chunk (of kBlocks all those of its blocks), and a random number for each, or none unless draws().
  struct Entries {
    std::span<const uint16_t> indices;  ///< within the chunk
    std::span<const float> values;
    std::span<const uint16_t> random = {};
  };
  /// Writes scale, indices and values of one chunk. `decoded` becomes what they decode to.
  void write_chunk(const ChunkRef& chunk, const Entries& entries, std::span<float> decoded,
                   std::byte* body) const;

  /// Checks everything in part.body and fills `places`. @throws InvalidArgument
  void open(const Part& part, PartName name, std::span<ChunkPlace> places, ThreadPool& pool) const;

  /// sum += entries of the region's chunk `index`.
  void add_chunk(const Part& part, size_t index, std::span<float> sum) const;

  /// No entry of the region's chunk `index` is larger in magnitude; 0 where there is none.
  float most_in(const Part& part, size_t index) const;

  struct EntryRoom {
    uint16_t indices[kChunk];
    alignas(64) float values[kChunk];
  };
  /// Indices and values of the region's chunk `index`, as long as its count.
  Entries read_entries(const Part& part, size_t index, EntryRoom& room) const;

  /// Copies the chunks of `region`, which part.region holds, into a body of their own.
  /// @returns its bytes.
  size_t copy_chunks(const Part& part, Region region, std::byte* out) const;

  /// `count` entries of a chunk, from `first` on and around.
  struct Taken {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  /// The same for some entries of each chunk, not of kBlocks. `places`: room for one per chunk of the region.
  size_t copy_some(const Part& part, Region region, std::span<const Taken> taken,
                   std::span<ChunkPlace> places, std::byte* out) const;

 private:
  bool has_scales() const { return values_.has_scale(); }
  size_t blocks_begin(size_t chunks) const;
  size_t scales_begin(size_t chunks) const;
  size_t indices_begin(size_t chunks) const;
  size_t index_bytes(const ChunkPlace& place, size_t numel) const;
  void write_indices(const ChunkPlace& place, Region chunk, std::span<const uint16_t> indices,
                     std::byte* body) const;
  /// Elements of the block that begins at, or goes on from, `element`, up to the end of its chunk.
  size_t run_at(uint64_t element, uint64_t chunk_end) const;
  void write_blocks(const ChunkPlace& place, Region chunk, std::span<const uint16_t> indices,
                    std::byte* body) const;
  uint32_t read_block_count(const Part& part, size_t chunks, size_t index) const;
  void read_block_elements(const Part& part, size_t index, std::span<uint16_t> indices) const;
  void check_blocks(const Part& part, PartName name, size_t index) const;
  void copy_values(const std::byte* from, size_t first, size_t count, std::byte* to,
                   size_t at) const;
  bfloat16 read_scale(const Part& part, size_t index) const;
  std::span<const uint16_t> read_indices(const Part& part, size_t index,
                                         std::span<uint16_t, kChunk> room) const;
  void check_chunk(const Part& part, PartName name, size_t index) const;

  const ValueRun values_;
  const IndexCodec indices_;
  const BlockGrid grid_;
};

}  // namespace gradwire
