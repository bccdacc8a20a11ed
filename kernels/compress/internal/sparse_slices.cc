// Slices of sparse bodies: chunks, or some entries of each, copied without encoding any value again.

#include <algorithm>
#include <cstring>

#include "gradwire/kernels/compress/internal/sparse_body.h"
#include "gradwire/kernels/ops/sparse.h"

namespace gradwire {

size_t SparseBody::copy_chunks(const Part& part, Region region, std::byte* out) const {
  const size_t first = (region.begin - part.region.begin) / kChunk;
  const size_t chunks = chunks_of(region.numel());
  const std::byte* const from = part.body.data();
  size_t at = indices_begin(chunks);
  std::memcpy(out, from + 2 * first, 2 * chunks);
  zero_bytes(out, 2 * chunks, blocks_begin(chunks));
  if (indices_ == IndexCodec::kBlocks) {
    std::memcpy(out + blocks_begin(chunks), from + blocks_begin(part.places.size()) + 2 * first,
                2 * chunks);
    zero_bytes(out, blocks_begin(chunks) + 2 * chunks, scales_begin(chunks));
  }
  if (has_scales()) {
    std::memcpy(out + scales_begin(chunks), from + scales_begin(part.places.size()) + 2 * first,
                2 * chunks);
    zero_bytes(out, scales_begin(chunks) + 2 * chunks, at);
  }
  if (chunks == 0) {
    return at;
  }
  const std::span<const ChunkPlace> places = part.places.subspan(first, chunks);
  const size_t last = first + chunks - 1;
  const size_t index_end = places.back().indices +
                           index_bytes(places.back(), chunk_length(part.region.numel(), last));
  at = static_cast<size_t>(std::copy(from + places.front().indices, from + index_end, out + at) -
                           out);
  zero_bytes(out, at, pad_to_4(at));
  const size_t value_end = places.back().values + values_.bytes(places.back().count);
  return static_cast<size_t>(
      std::copy(from + places.front().values, from + value_end, out + pad_to_4(at)) - out);
}

// `count` values from the `first` of a run on, to the `at`-th of another whose bytes are zero.
void SparseBody::copy_values(const std::byte* from, size_t first, size_t count, std::byte* to,
                             size_t at) const {
  if (values_.bits() >= 8) {
    const size_t width = static_cast<size_t>(values_.bits()) / 8;
    std::memcpy(to + at * width, from + first * width, count * width);
    return;
  }
  const auto bits = static_cast<size_t>(values_.bits());
  const size_t per_byte = 8 / bits;
  const std::byte mask{static_cast<unsigned char>((1u << bits) - 1)};
  for (size_t i = 0; i < count; ++i) {
    const std::byte packed = from[(first + i) / per_byte];
    const std::byte code = packed >> ((first + i) % per_byte * bits) & mask;
    to[(at + i) / per_byte] |= code << ((at + i) % per_byte * bits);
  }
}

size_t SparseBody::copy_some(const Part& part, Region region, std::span<const Taken> taken,
                             std::span<ChunkPlace> places, std::byte* out) const {
  const size_t first = (region.begin - part.region.begin) / kChunk;
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].count = taken[i].count;
  }
  const size_t bytes = lay_out(region.numel(), places);
  write_counts(region.numel(), places, out);
  if (has_scales()) {
    std::memcpy(out + scales_begin(places.size()),
                part.body.data() + scales_begin(part.places.size()) + 2 * first,
                2 * places.size());
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const ChunkPlace& from = part.places[first + i];
    uint16_t room[kChunk], chosen[kChunk];
    const std::span<const uint16_t> indices = read_indices(part, first + i, room);
    std::byte* const values = out + places[i].values;
    std::fill_n(values, values_.bytes(taken[i].count), std::byte{0});
    // What goes around the end comes first: indices increase.
    const size_t end = size_t{taken[i].first} + taken[i].count;
    const size_t around = end > from.count ? end - from.count : 0;
    const size_t straight = taken[i].count - around;
    std::copy_n(indices.begin(), around, chosen);
    std::copy_n(indices.begin() + taken[i].first, straight, chosen + around);
    copy_values(part.body.data() + from.values, 0, around, values, 0);
    copy_values(part.body.data() + from.values, taken[i].first, straight, values, around);
    const size_t begin = region.begin + i * kChunk;
    write_indices(places[i], {begin, begin + chunk_length(region.numel(), i)},
                  {chosen, taken[i].count}, out);
  }
  return bytes;
}

}  // namespace gradwire
