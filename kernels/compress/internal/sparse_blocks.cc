// Sparse bodies whose indices say blocks: each the first element of a block, or of what lies of one
// in the chunk. Entries are then all elements of these, in order.

#include <cstring>
#include <numeric>

#include "gradwire/kernels/compress/internal/sparse_body.h"
#include "gradwire/kernels/ops/sparse.h"

namespace gradwire {

size_t SparseBody::run_at(uint64_t element, uint64_t chunk_end) const {
  return static_cast<size_t>(std::min(grid_.extent_at(element).end, chunk_end) - element);
}

uint32_t SparseBody::count_blocks(uint64_t begin, std::span<const uint16_t> indices) const {
  uint32_t blocks = 0;
  for (size_t j = 0; indices_ == IndexCodec::kBlocks && j < indices.size(); ++blocks) {
    j += run_at(begin + indices[j], begin + kChunk);
  }
  return blocks;
}

void SparseBody::write_blocks(const ChunkPlace& place, Region chunk,
                              std::span<const uint16_t> indices, std::byte* body) const {
  uint16_t begins[kChunk];
  size_t blocks = 0;
  for (size_t j = 0; j < indices.size(); ++blocks) {
    begins[blocks] = indices[j];
    j += run_at(chunk.begin + indices[j], chunk.end);
  }
  cpu::pack_indices({begins, blocks}, body + place.indices);
}

uint32_t SparseBody::read_block_count(const Part& part, size_t chunks, size_t index) const {
  uint16_t blocks;
  std::memcpy(&blocks, part.body.data() + blocks_begin(chunks) + 2 * index, sizeof blocks);
  return blocks;
}

void SparseBody::read_block_elements(const Part& part, size_t index,
                                     std::span<uint16_t> indices) const {
  const ChunkPlace& place = part.places[index];
  const uint64_t begin = part.region.begin + index * kChunk;
  uint16_t begins[kChunk];
  cpu::unpack_indices(part.body.data() + place.indices, {begins, place.blocks});
  size_t at = 0;
  for (uint32_t block = 0; block < place.blocks; ++block) {
    const size_t length =
        std::min(run_at(begin + begins[block], begin + kChunk), indices.size() - at);
    std::iota(indices.begin() + static_cast<ptrdiff_t>(at),
              indices.begin() + static_cast<ptrdiff_t>(at + length), begins[block]);
    at += length;
  }
}

void SparseBody::check_blocks(const Part& part, PartName name, size_t index) const {
  const ChunkPlace& place = part.places[index];
  const uint64_t begin = part.region.begin + index * kChunk;
  const uint64_t end = begin + chunk_length(part.region.numel(), index);
  const size_t chunk = begin / kChunk;
  uint16_t begins[kChunk];
  cpu::unpack_indices(part.body.data() + place.indices, {begins, place.blocks});
  int previous = -1;
  size_t entries = 0;
  for (const uint16_t at : std::span(begins, place.blocks)) {
    check(int{at} > previous && begin + at < end, name, ": index in chunk ", chunk, " is ", at,
          ", must be above ", previous, " and below ", end - begin);
    check(at == 0 || grid_.extent_at(begin + at).begin == begin + at, name, ": index in chunk ",
          chunk, " is ", at, ", must be the first element of a block");
    entries += run_at(begin + at, end);
    previous = at;
  }
  check(entries == place.count, name, ": blocks of chunk ", chunk, " hold ", entries,
        " elements, its count is ", place.count);
}

}  // namespace gradwire
