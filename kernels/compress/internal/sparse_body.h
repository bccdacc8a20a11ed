#pragma once
// The body of sparse payloads: counts, scales, indices and values of each chunk, as WIRE_FORMAT.md
// lays them out. Shared by every compressor that selects.

#include "gradwire/kernels/compress/internal/chunked.h"

namespace gradwire {

enum class IndexCodec : uint8_t {
  kTwelveBit,  ///< 12 bits per entry
  kBitmap,     ///< 1 bit per element of the group
};

/// The smaller one, from the spec and the shape of the whole group alone.
constexpr IndexCodec sparse_index_codec(size_t kept, size_t numel) {
  return kept > numel / 12 ? IndexCodec::kBitmap : IndexCodec::kTwelveBit;
}

class SparseBody {
 public:
  SparseBody(ValueCodec values, IndexCodec indices);

  IndexCodec indices() const { return indices_; }

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
  /// Writes scale, indices and values of one chunk. `decoded` becomes what they decode to.
  void write_chunk(const ChunkRef& chunk, std::span<const uint16_t> indices,
                   std::span<const float> values, std::span<float> decoded, std::byte* body) const;

  /// Checks everything in part.body and fills `places`. @throws InvalidArgument
  void open(const Part& part, PartName name, std::span<ChunkPlace> places, ThreadPool& pool) const;

  /// sum += entries of the region's chunk `index`.
  void add_chunk(const Part& part, size_t index, std::span<float> sum) const;

  /// Copies the chunks of `region`, which part.region holds, into a body of their own.
  /// @returns its bytes.
  size_t copy_chunks(const Part& part, Region region, std::byte* out) const;

 private:
  bool has_scales() const { return value_bits_ <= 8; }
  size_t scales_begin(size_t chunks) const;
  size_t indices_begin(size_t chunks) const;
  size_t index_bytes(size_t count, size_t numel) const;
  size_t value_bytes(size_t count) const;
  bfloat16 read_scale(const Part& part, size_t index) const;
  std::span<const uint16_t> read_indices(const Part& part, size_t index,
                                         std::span<uint16_t, kChunk> room) const;
  void check_chunk(const Part& part, PartName name, size_t index) const;
  bfloat16 write_quantized(std::span<const float> values, std::span<float> decoded,
                           std::byte* out) const;

  const ValueCodec values_;
  const IndexCodec indices_;
  const int value_bits_;
};

}  // namespace gradwire
