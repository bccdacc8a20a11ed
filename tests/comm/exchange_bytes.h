#pragma once
// How many bytes payloads and exchanges take, from kernels/compress/WIRE_FORMAT.md and the
// definition of each exchange. No length of an encoding that it names is asked of the library.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "tests/comm/exchange_case.h"

namespace gradwire::test {

inline DType dtype_sent(const CompressorSpec& spec, DType gradient) {
  return spec.codec.values == ValueCodec::kFloat32    ? DType::kFloat32
         : spec.codec.values == ValueCodec::kFloat16  ? DType::kFloat16
         : spec.codec.values == ValueCodec::kBFloat16 ? DType::kBFloat16
                                                      : gradient;
}

/// Elements rank r owns when whole chunks of 4096 are dealt out, the first ranks getting one more.
inline size_t owned_elements(size_t numel, int world_size, int r) {
  size_t owned = 0;
  const size_t chunks = (numel + 4095) / 4096;
  const size_t ranks = static_cast<size_t>(world_size);
  size_t chunk = 0;
  for (int owner = 0; owner < world_size; ++owner) {
    const size_t count = chunks / ranks + (static_cast<size_t>(owner) < chunks % ranks ? 1 : 0);
    for (size_t i = 0; i < count; ++i, ++chunk) {
      if (owner == r) {
        owned += std::min<size_t>(4096, numel - chunk * 4096);
      }
    }
  }
  return owned;
}

/// Whether a rank chooses elements for itself, so that lengths depend on its gradient.
inline bool chooses_alone(const CompressorSpec& spec) {
  const CompressorRow& row = find_compressor(spec.name);
  return row.selector() && !row.shared_choice();
}

/// A run of `count` values of a selector.
inline size_t run_bytes(const CompressorSpec& spec, size_t count) {
  return (count * static_cast<size_t>(value_bits(spec.codec.values, DType::kFloat32)) + 7) / 8;
}

/// Of `length` elements, those of a density.
inline size_t share_of(const CompressorSpec& spec, size_t length) {
  const double share = std::ceil(spec.choice.density * static_cast<double>(length));
  return std::max<size_t>(1, static_cast<size_t>(share));
}

/// A payload of `numel` elements that begin at a chunk, where its length follows from the spec:
/// compressors that send every element, or drawn ones. One with an encoding of its own is asked.
inline size_t payload_bytes(const CompressorSpec& spec, DType dtype, size_t numel) {
  const CompressorRow& row = find_compressor(spec.name);
  if (row.most_lost > 0) {
    return make_compressor(spec, {.numel = numel, .dtype = dtype})->capacity_bytes();
  }
  const auto bits = static_cast<size_t>(value_bits(spec.codec.values, dtype));
  if (bits >= 16 && !row.selector()) {
    return 32 + size_of(dtype_sent(spec, dtype)) * numel;
  }
  size_t bytes = 32;
  for (size_t begin = 0; begin < numel; begin += 4096) {
    const size_t length = std::min<size_t>(4096, numel - begin);
    bytes += row.shared_choice() ? (bits < 16 ? 2 : 0) + run_bytes(spec, share_of(spec, length))
                                 : 4 * ((length + spec.codec.block - 1) / spec.codec.block) +
                                       (length * bits + 7) / 8;
  }
  return bytes;
}

/// The most entries of a payload: k, K of every chunk, or what threshold has room for.
inline size_t most_entries(const CompressorSpec& spec, size_t numel) {
  const auto of = [&](size_t n) { return share_of(spec, n); };
  if (!find_compressor(spec.name).per_chunk()) {
    return spec.name == "threshold" ? std::min(numel, of(numel) + (of(numel) + 3) / 4) : of(numel);
  }
  size_t entries = 0;
  for (size_t begin = 0; begin < numel; begin += 4096) {
    entries += of(std::min<size_t>(4096, numel - begin));
  }
  return entries;
}

/// A payload of entries, the non-zero elements of `sent`: those of a group of `numel` elements that
/// a payload or slice carries.
inline size_t sparse_payload_bytes(const CompressorSpec& spec, size_t numel,
                                   std::span<const float> sent) {
  const auto pad4 = [](size_t bytes) { return (bytes + 3) / 4 * 4; };
  const size_t chunks = (sent.size() + 4095) / 4096;
  const bool bitmap = most_entries(spec, numel) > numel / 12;
  size_t indices = 0, values = 0;
  const size_t width = spec.choice.width;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const auto of_chunk =
        sent.subspan(chunk * 4096, std::min<size_t>(4096, sent.size() - chunk * 4096));
    size_t count = of_chunk.size() - static_cast<size_t>(std::ranges::count(of_chunk, 0.0f));
    size_t listed = count;
    if (width > 0) {  // zeros go with their block; widths here divide a chunk
      count = listed = 0;
      for (size_t at = 0; at < of_chunk.size(); at += width) {
        const auto block = of_chunk.subspan(at, std::min(width, of_chunk.size() - at));
        const bool is_sent = std::ranges::any_of(block, [](float x) { return x != 0; });
        count += is_sent ? block.size() : 0;
        listed += is_sent ? 1 : 0;
      }
    }
    indices += bitmap && width == 0 ? (of_chunk.size() + 7) / 8
                                    : 3 * (listed / 2) + 2 * (listed % 2);
    values += run_bytes(spec, count);
  }
  const size_t scales = value_bits(spec.codec.values, DType::kFloat32) < 16 ? pad4(2 * chunks) : 0;
  return 32 + pad4(2 * chunks) * (width > 0 ? 2 : 1) + scales + pad4(indices) + values;
}

/// Floats of one all-reduce of the groups: values, 8 in the place of each header but the first,
/// flags.
inline size_t summed_floats(const ExchangeCase& c) {
  size_t floats = 8 * (c.specs.size() - 1) + static_cast<size_t>(c.world_size);
  for (size_t g = 0; g < c.specs.size(); ++g) {
    floats += (payload_bytes(c.specs[g], c.dtype, c.numels[g]) - 32) / 4;
  }
  return floats;
}

/// A message of a round: its header, its floats, and 4 bytes for each chunk of 128 KiB behind the
/// first 8128 bytes.
inline uint64_t round_bytes(size_t floats) {
  const size_t bytes = 4 * floats;
  return 64 + bytes + (bytes > 8128 ? 4 * ((bytes - 8128 + 131071) / 131072) : 0);
}

/// What rank r sends of `floats` that add up in flight, by the row's algorithm, step for step.
inline uint64_t expected_bytes_in_flight(const ExchangeCase& c, int r) {
  const size_t floats = summed_floats(c);
  const auto ranks = static_cast<size_t>(c.world_size), rank = static_cast<size_t>(r);
  const auto shard = [&](size_t owner) {
    return floats / ranks + (owner % ranks < floats % ranks ? 1 : 0);
  };
  uint64_t bytes = 0;
  if (c.exchange != "rabenseifner") {
    for (size_t step = 1; step < ranks; ++step) {
      bytes += c.exchange == "ring" ? round_bytes(shard(rank + ranks - step)) +
                                          round_bytes(shard(rank + ranks - step + 1))
                                    : 64 + 4 * shard(rank + step) + 64 + 4 * shard(rank);
    }
    return bytes;
  }
  size_t power = 1;
  while (2 * power <= ranks) {
    power *= 2;
  }
  const size_t pairs = ranks - power;
  size_t place = rank - pairs;
  if (rank < 2 * pairs) {
    bytes += round_bytes(floats);  // to the other of the pair: the values there, the sums back
    if (rank % 2 == 0) {
      return bytes;
    }
    place = rank / 2;
  }
  size_t shared = floats;
  for (; power > 1; power /= 2, place /= 2) {
    const size_t kept = place % 2 == 0 ? shared / 2 : shared - shared / 2;
    bytes += round_bytes(shared - kept) + round_bytes(kept);  // the latter later, on the way back
    shared = kept;
  }
  return bytes;
}

/// Bytes rank r must send, frame headers of 64 bytes included, of sums in flight and of gather.
inline uint64_t expected_bytes(const ExchangeCase& c, const RankResult& result, int r) {
  if (c.exchange != "gather") {
    return expected_bytes_in_flight(c, r);
  }
  uint64_t message = 64;
  for (const GroupResult& group : result.groups) {
    message += group.payload_bytes;
  }
  return static_cast<uint64_t>(c.world_size - 1) * message;
}

}  // namespace gradwire::test
