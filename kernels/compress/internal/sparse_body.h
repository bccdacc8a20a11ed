#pragma once
// The body of sparse payloads: counts, scales, indices and values of each chunk, as WIRE_FORMAT.md
// lays them out. Shared by every compressor that selects.

#include <algorithm>

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/value_run.h"

namespace gradwire {

enum class IndexCodec : uint8_t {
  kTwelveBit,  ///< 12 bits per entry
  kBitmap,     ///< 1 bit per element of the group
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
  SparseBody(const ValueRun& values, IndexCodec indices);

  IndexCodec indices() const { return indices_; }
  /// Whether write_chunk() needs a random number per value.
  bool draws() const { return values_.draws(); }

  /// Upper bound for a region of `numel` elements with at most `kept` entries.
  size_t capacity_bytes(size_t numel, size_t kept) const;

  /// Fills where each chunk's indices and values begin from the counts. @returns the body's bytes.
  size_t lay_out(size_t numel, std::span<ChunkPlace> places) const;

  /// Writes the counts and all padding.
  void write_counts(size_t numel, std::span<const ChunkPlace> places, std::byte* body) const;

  struct ChunkRef {
    std::span<const ChunkPlace> places;
    size_t numel;  ///< of the region
    size_t index;  ///< of the chunk in the region
  };
  /// The chosen elements of one chunk, and a random number for each, or none unless draws().
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
  /// The same for some entries of each chunk. `places`: room for one per chunk of the region.
  size_t copy_some(const Part& part, Region region, std::span<const Taken> taken,
                   std::span<ChunkPlace> places, std::byte* out) const;

 private:
  bool has_scales() const { return values_.has_scale(); }
  size_t scales_begin(size_t chunks) const;
  size_t indices_begin(size_t chunks) const;
  size_t index_bytes(size_t count, size_t numel) const;
  void write_indices(const ChunkPlace& place, size_t numel, std::span<const uint16_t> indices,
                     std::byte* body) const;
  void copy_values(const std::byte* from, size_t first, size_t count, std::byte* to,
                   size_t at) const;
  bfloat16 read_scale(const Part& part, size_t index) const;
  std::span<const uint16_t> read_indices(const Part& part, size_t index,
                                         std::span<uint16_t, kChunk> room) const;
  void check_chunk(const Part& part, PartName name, size_t index) const;

  const ValueRun values_;
  const IndexCodec indices_;
};

}  // namespace gradwire
