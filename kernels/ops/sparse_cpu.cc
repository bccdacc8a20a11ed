#include "gradwire/kernels/ops/sparse.h"

#include <algorithm>
#include <bit>

#include "gradwire/kernels/core/clones.h"

namespace gradwire::cpu {
namespace {

GRADWIRE_CLONES void pack_pairs(const uint16_t* indices, size_t pairs, uint8_t* out) {
  for (size_t i = 0; i < pairs; ++i) {
    const uint32_t both = indices[2 * i] | static_cast<uint32_t>(indices[2 * i + 1]) << 12;
    out[3 * i] = static_cast<uint8_t>(both);
    out[3 * i + 1] = static_cast<uint8_t>(both >> 8);
    out[3 * i + 2] = static_cast<uint8_t>(both >> 16);
  }
}

GRADWIRE_CLONES void unpack_pairs(const uint8_t* packed, size_t pairs, uint16_t* indices) {
  for (size_t i = 0; i < pairs; ++i) {
    const uint32_t low = packed[3 * i];
    const uint32_t middle = packed[3 * i + 1];
    const uint32_t high = packed[3 * i + 2];
    indices[2 * i] = static_cast<uint16_t>(low | (middle & 15) << 8);
    indices[2 * i + 1] = static_cast<uint16_t>(middle >> 4 | high << 4);
  }
}

}  // namespace

void pack_indices(std::span<const uint16_t> indices, std::byte* out) {
  auto* bytes = reinterpret_cast<uint8_t*>(out);
  const size_t pairs = indices.size() / 2;
  pack_pairs(indices.data(), pairs, bytes);
  if (indices.size() % 2 == 1) {
    bytes[3 * pairs] = static_cast<uint8_t>(indices.back());
    bytes[3 * pairs + 1] = static_cast<uint8_t>(indices.back() >> 8);
  }
}

void unpack_indices(const std::byte* packed, std::span<uint16_t> indices) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(packed);
  const size_t pairs = indices.size() / 2;
  unpack_pairs(bytes, pairs, indices.data());
  if (indices.size() % 2 == 1) {
    indices.back() =
        static_cast<uint16_t>(bytes[3 * pairs] | static_cast<uint32_t>(bytes[3 * pairs + 1]) << 8);
  }
}

void pack_bitmap(std::span<const uint16_t> indices, std::span<std::byte> bitmap) {
  std::ranges::fill(bitmap, std::byte{0});
  for (const uint16_t index : indices) {
    bitmap[index / 8] |= std::byte{1} << (index % 8);
  }
}

size_t unpack_bitmap(std::span<const std::byte> bitmap, std::span<uint16_t> indices) {
  size_t count = 0;
  for (size_t byte = 0; byte < bitmap.size(); ++byte) {
    for (auto bits = std::to_integer<uint32_t>(bitmap[byte]); bits != 0; bits &= bits - 1) {
      if (count < indices.size()) {
        indices[count] =
            static_cast<uint16_t>(byte * 8 + static_cast<size_t>(std::countr_zero(bits)));
      }
      ++count;
    }
  }
  return count;
}

void gather(std::span<const float> x, std::span<const uint16_t> indices, std::span<float> out) {
  for (size_t i = 0; i < indices.size(); ++i) {
    out[i] = x[indices[i]];
  }
}

void accumulate(std::span<const float> values, std::span<const uint16_t> indices,
                std::span<float> sum) {
  for (size_t i = 0; i < indices.size(); ++i) {
    sum[indices[i]] += values[i];
  }
}

}  // namespace gradwire::cpu
