#include "gradwire/kernels/compress/internal/sparse_body.h"

#include <algorithm>
#include <cassert>

#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/sparse.h"

namespace gradwire {
namespace {

/// Asks caches for the first lines of a chunk: other parts are read before it, and memory sees no
/// stream in such short runs.
void prefetch(const Part& part, size_t index) {
  constexpr size_t kLine = 64;
  const std::byte* const indices = part.body.data() + part.places[index].indices;
  const std::byte* const values = part.body.data() + part.places[index].values;
  for (size_t line = 0; line < 3; ++line) {
    __builtin_prefetch(values + line * kLine);
  }
  __builtin_prefetch(indices);
  __builtin_prefetch(indices + kLine);
}

Region chunk_in(Region region, size_t index) {
  const size_t begin = region.begin + index * kChunk;
  return {begin, begin + chunk_length(region.numel(), index)};
}

}  // namespace

SparseBody::SparseBody(const ValueRun& values, IndexCodec indices, const BlockGrid& grid)
    : values_(values), indices_(indices), grid_(grid) {}

size_t SparseBody::blocks_begin(size_t chunks) const { return pad_to_4(2 * chunks); }

size_t SparseBody::scales_begin(size_t chunks) const {
  return blocks_begin(chunks) + (indices_ == IndexCodec::kBlocks ? pad_to_4(2 * chunks) : 0);
}

size_t SparseBody::indices_begin(size_t chunks) const {
  return scales_begin(chunks) + (has_scales() ? pad_to_4(2 * chunks) : 0);
}

size_t SparseBody::index_bytes(const ChunkPlace& place, size_t numel) const {
  return indices_ == IndexCodec::kBitmap   ? cpu::bitmap_bytes(numel)
         : indices_ == IndexCodec::kBlocks ? cpu::packed_index_bytes(place.blocks)
                                           : cpu::packed_index_bytes(place.count);
}

size_t SparseBody::capacity_bytes(size_t numel, Most most) const {
  const size_t chunks = chunks_of(numel);
  // An odd count wastes half a byte: as many of them as can be.
  const size_t index_bytes = indices_ == IndexCodec::kBitmap
                                 ? cpu::bitmap_bytes(numel)
                                 : (3 * most.indices + std::min(most.indices, chunks)) / 2;
  return indices_begin(chunks) + pad_to_4(index_bytes) + values_.most_bytes(most.entries, chunks);
}

size_t SparseBody::lay_out(size_t numel, std::span<ChunkPlace> places) const {
  size_t at = indices_begin(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].indices = at;
    at += index_bytes(places[i], chunk_length(numel, i));
  }
  at = pad_to_4(at);
  for (ChunkPlace& place : places) {
    place.values = at;
    at += values_.bytes(place.count);
  }
  return at;
}

void SparseBody::write_counts(size_t numel, std::span<const ChunkPlace> places,
                              std::byte* body) const {
  const size_t chunks = places.size();
  for (size_t i = 0; i < chunks; ++i) {
    const auto count = static_cast<uint16_t>(places[i].count);
    std::memcpy(body + 2 * i, &count, sizeof count);
  }
  zero_bytes(body, 2 * chunks, blocks_begin(chunks));
  if (indices_ == IndexCodec::kBlocks) {
    for (size_t i = 0; i < chunks; ++i) {
      const auto blocks = static_cast<uint16_t>(places[i].blocks);
      std::memcpy(body + blocks_begin(chunks) + 2 * i, &blocks, sizeof blocks);
    }
    zero_bytes(body, blocks_begin(chunks) + 2 * chunks, scales_begin(chunks));
  }
  if (has_scales()) {
    zero_bytes(body, scales_begin(chunks) + 2 * chunks, indices_begin(chunks));
  }
  if (chunks > 0) {
    const ChunkPlace& last = places.back();
    const size_t end = last.indices + index_bytes(last, chunk_length(numel, chunks - 1));
    zero_bytes(body, end, pad_to_4(end));
  }
}

void SparseBody::write_indices(const ChunkPlace& place, Region chunk,
                               std::span<const uint16_t> indices, std::byte* body) const {
  if (indices_ == IndexCodec::kBitmap) {
    cpu::pack_bitmap(indices, {body + place.indices, cpu::bitmap_bytes(chunk.numel())});
  } else if (indices_ == IndexCodec::kBlocks) {
    write_blocks(place, chunk, indices, body);
  } else {
    cpu::pack_indices(indices, body + place.indices);
  }
}

void SparseBody::write_chunk(const ChunkRef& chunk, const Entries& entries,
                             std::span<float> decoded, std::byte* body) const {
  const ChunkPlace& place = chunk.places[chunk.index];
  assert(place.count == entries.indices.size());
  write_indices(place, chunk_in(chunk.region, chunk.index), entries.indices, body);
  const bfloat16 scale =
      values_.write(entries.values, entries.random, decoded, body + place.values);
  if (has_scales()) {
    std::memcpy(body + scales_begin(chunk.places.size()) + 2 * chunk.index, &scale, sizeof scale);
  }
}

bfloat16 SparseBody::read_scale(const Part& part, size_t index) const {
  bfloat16 scale;
  std::memcpy(&scale, part.body.data() + scales_begin(part.places.size()) + 2 * index,
              sizeof scale);
  return scale;
}

std::span<const uint16_t> SparseBody::read_indices(const Part& part, size_t index,
                                                   std::span<uint16_t, kChunk> room) const {
  const ChunkPlace& place = part.places[index];
  const std::span<uint16_t> indices = room.first(place.count);
  const std::byte* const packed = part.body.data() + place.indices;
  if (indices_ == IndexCodec::kBlocks) {
    read_block_elements(part, index, indices);
  } else if (indices_ == IndexCodec::kBitmap) {
    const size_t bytes = cpu::bitmap_bytes(chunk_length(part.region.numel(), index));
    cpu::unpack_bitmap({packed, bytes}, indices);
  } else {
    cpu::unpack_indices(packed, indices);
  }
  return indices;
}

void SparseBody::open(const Part& part, PartName name, std::span<ChunkPlace> places,
                      ThreadPool& pool) const {
  const size_t numel = part.region.numel();
  const size_t first = part.region.begin / kChunk;
  const size_t fixed = indices_begin(places.size());
  check(part.body.size() >= fixed, name, ": body is ", part.body.size(),
        " bytes, must be at least ", fixed);
  for (size_t i = 0; i < places.size(); ++i) {
    uint16_t count;
    std::memcpy(&count, part.body.data() + 2 * i, sizeof count);
    check(count <= chunk_length(numel, i), name, ": count of chunk ", first + i, " is ", count,
          ", must be at most ", chunk_length(numel, i));
    places[i].count = count;
    if (indices_ == IndexCodec::kBlocks) {
      places[i].blocks = read_block_count(part, places.size(), i);
      check(places[i].blocks <= count, name, ": count of blocks of chunk ", first + i, " is ",
            places[i].blocks, ", must be at most its count of elements, ", count);
    }
  }
  const size_t bytes = lay_out(numel, places);
  check(part.body.size() == bytes, name, ": body is ", part.body.size(),
        " bytes, its counts make it ", bytes);
  Part placed = part;
  placed.places = places;
  cpu::for_each_chunk(pool, places.size(), [&](size_t i) { check_chunk(placed, name, i); });
}

void SparseBody::check_chunk(const Part& part, PartName name, size_t index) const {
  const size_t chunk = part.region.begin / kChunk + index;
  const size_t numel = chunk_length(part.region.numel(), index);
  if (has_scales()) {
    const bfloat16 scale = read_scale(part, index);
    check(scale.bits < 0x7F80, name, ": scale of chunk ", chunk, " is ", to_float(scale),
          ", must be finite and not negative");
  }
  const ChunkPlace& place = part.places[index];
  if (indices_ == IndexCodec::kTwelveBit &&
      cpu::packed_indices_ascend(part.body.data() + place.indices, place.count, numel)) {
    return;
  }
  if (indices_ == IndexCodec::kBlocks) {
    check_blocks(part, name, index);
    return;
  }
  uint16_t room[kChunk];
  if (indices_ == IndexCodec::kBitmap) {
    const std::span bitmap = part.body.subspan(place.indices, cpu::bitmap_bytes(numel));
    const size_t marked = cpu::count_bits(bitmap);
    check(marked == place.count, name, ": bitmap of chunk ", chunk, " marks ", marked,
          " elements, its count is ", place.count);
    if (numel % 8 == 0 || bitmap.back() >> (numel % 8) == std::byte{0}) {
      return;
    }
  }
  // Minus one before the first, so that one comparison sees repeats and disorder.
  int previous = -1;
  for (const uint16_t at : read_indices(part, index, room)) {
    check(int{at} > previous && at < numel, name, ": index in chunk ", chunk, " is ", at,
          ", must be above ", previous, " and below ", numel);
    previous = at;
  }
}

void SparseBody::add_chunk(const Part& part, size_t index, std::span<float> sum) const {
  if (values_.codec() == ValueCodec::kFloat32 && indices_ == IndexCodec::kTwelveBit) {
    const ChunkPlace& place = part.places[index];
    prefetch(part, std::min(index + 2, part.places.size() - 1));
    cpu::accumulate_packed(part.body.data() + place.indices, part.body.data() + place.values,
                           place.count, sum);
    return;
  }
  EntryRoom room;
  const Entries entries = read_entries(part, index, room);
  cpu::accumulate(entries.values, entries.indices, sum);
}

float SparseBody::most_in(const Part& part, size_t index) const {
  const ChunkPlace& place = part.places[index];
  return place.count == 0
             ? 0.0f
             : values_.most(part.body.data() + place.values,
                            has_scales() ? read_scale(part, index) : bfloat16{0}, place.count);
}

SparseBody::Entries SparseBody::read_entries(const Part& part, size_t index,
                                             EntryRoom& room) const {
  const std::span<const uint16_t> indices = read_indices(part, index, room.indices);
  const std::span<float> values(room.values, indices.size());
  const std::byte* const sent = part.body.data() + part.places[index].values;
  values_.read(sent, has_scales() ? read_scale(part, index) : bfloat16{0}, values);
  return {indices, values};
}

}  // namespace gradwire
