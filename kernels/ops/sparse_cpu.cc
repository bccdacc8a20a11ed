#include "gradwire/kernels/ops/sparse.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/core/isa.h"

#ifdef GRADWIRE_X86
// GCC 12 takes the undefined lanes inside its own header for a mistake.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

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

inline uint16_t load_index(const uint8_t* packed, size_t count, size_t i) {
  const uint8_t* const at = packed + i / 2 * 3;
  if (i % 2 == 1) {
    return static_cast<uint16_t>(at[1] >> 4 | at[2] << 4);
  }
  const uint32_t high = i + 1 == count ? at[1] : at[1] & 15u;  // a single one has 16 bits
  return static_cast<uint16_t>(at[0] | high << 8);
}

/// Packed indices and float32 values as they lie in a payload.
struct Entries {
  const uint8_t* packed;
  const std::byte* values;
  size_t count;

  /// Adds value `i`, whose index is known.
  void add(size_t i, uint16_t index, float* sum) const {
    float value;
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    sum[index] += value;
  }
};

void unpack_plain(const uint8_t* packed, size_t begin, size_t count, uint16_t* indices) {
  for (size_t i = begin; i < count; ++i) {
    indices[i] = load_index(packed, count, i);
  }
}

#ifdef GRADWIRE_X86

// In each 128 bits: eight indices of 12 bits, from the first 12 bytes, as eight words: the two
// bytes that hold the index, of which the first word of a pair still has to lose its upper nibble.
#define GRADWIRE_INDEX_BYTES 0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11

/// 16 indices from 24 bytes, of which 32 are loaded: 22 indices take as many.
GRADWIRE_AVX2 inline __m256i unpack_16(const uint8_t* from) {
  const __m256i dwords = _mm256_setr_epi32(0, 1, 2, 3, 3, 4, 5, 6);
  const __m256i bytes = _mm256_setr_epi8(GRADWIRE_INDEX_BYTES, GRADWIRE_INDEX_BYTES);
  const __m256i shifts = _mm256_set1_epi32(0x00010010);  // words: times 16, times 1
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i spread = _mm256_permutevar8x32_epi32(raw, dwords);
  const __m256i words = _mm256_mullo_epi16(_mm256_shuffle_epi8(spread, bytes), shifts);
  return _mm256_srli_epi16(words, 4);
}

GRADWIRE_AVX2 size_t unpack_avx2(const uint8_t* packed, size_t count, uint16_t* indices) {
  size_t i = 0;
  for (; i + 22 <= count; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + i), unpack_16(packed + i / 2 * 3));
  }
  return i;
}

GRADWIRE_AVX2 size_t accumulate_avx2(const Entries& entries, float* sum) {
  size_t i = 0;
  for (; i + 22 <= entries.count; i += 16) {
    alignas(32) uint16_t indices[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(indices), unpack_16(entries.packed + i / 2 * 3));
    for (size_t j = 0; j < 16; ++j) {
      entries.add(i + j, indices[j], sum);
    }
  }
  return i;
}

/// 32 indices from `i` on; words past `pairs` pairs are zero.
GRADWIRE_AVX512 inline __m512i unpack_32(const uint8_t* packed, size_t i, size_t pairs) {
  const size_t left = std::min<size_t>(pairs - i / 2, 16);
  const __m512i raw = _mm512_maskz_loadu_epi8((uint64_t{1} << 3 * left) - 1, packed + i / 2 * 3);
  const __m512i spread = _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12), raw);
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(GRADWIRE_INDEX_BYTES));
  const __m512i words =
      _mm512_mullo_epi16(_mm512_shuffle_epi8(spread, bytes), _mm512_set1_epi32(0x00010010));
  return _mm512_srli_epi16(words, 4);
}

GRADWIRE_AVX512 size_t unpack_avx512(const uint8_t* packed, size_t count, uint16_t* indices) {
  const size_t paired = count / 2 * 2;
  for (size_t i = 0; i < paired; i += 32) {
    const size_t left = std::min<size_t>(paired - i, 32);
    _mm512_mask_storeu_epi16(indices + i, static_cast<__mmask32>((uint64_t{1} << left) - 1),
                             unpack_32(packed, i, paired / 2));
  }
  return paired;
}

GRADWIRE_AVX512 size_t accumulate_avx512(const Entries& entries, float* sum) {
  const size_t paired = entries.count / 2 * 2;
  for (size_t i = 0; i < paired; i += 32) {
    alignas(64) uint16_t indices[32];
    _mm512_store_si512(indices, unpack_32(entries.packed, i, paired / 2));
    const size_t left = std::min<size_t>(paired - i, 32);
    for (size_t j = 0; j < left; j += 2) {
      entries.add(i + j, indices[j], sum);
      entries.add(i + j + 1, indices[j + 1], sum);
    }
  }
  return paired;
}

/// Whether the paired ones increase strictly.
GRADWIRE_AVX512 bool pairs_ascend_avx512(const uint8_t* packed, size_t pairs) {
  alignas(64) static constexpr uint16_t kOneBack[32] = {63, 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,
                                                        10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
                                                        21, 22, 23, 24, 25, 26, 27, 28, 29, 30};
  const __m512i one_back = _mm512_load_si512(kOneBack);
  __m512i before = _mm512_set1_epi16(-1);
  for (size_t i = 0; i < 2 * pairs; i += 32) {
    const size_t left = std::min<size_t>(2 * pairs - i, 32);
    const auto valid = static_cast<__mmask32>((uint64_t{1} << left) - 1);
    const __m512i now = unpack_32(packed, i, pairs);
    const __m512i previous = _mm512_permutex2var_epi16(now, one_back, before);
    if (_mm512_mask_cmple_epi16_mask(valid, now, previous) != 0) {
      return false;
    }
    before = now;
  }
  return true;
}

/// The places of the set bits of a byte, in the low bytes; what is above them counts for nothing.
constexpr std::array<uint64_t, 256> kBitPlaces = [] {
  std::array<uint64_t, 256> places{};
  for (size_t byte = 0; byte < places.size(); ++byte) {
    int at = 0;
    for (uint64_t bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1) != 0) {
        places[byte] |= bit << (8 * at++);
      }
    }
  }
  return places;
}();

/// How far an unpacking got.
struct Unpacked {
  size_t bytes = 0;
  size_t count = 0;
};

/// Positions of set bits, eight stored at a time, as long as there is room for eight.
GRADWIRE_AVX2 Unpacked unpack_bitmap_avx2(std::span<const std::byte> bitmap,
                                          std::span<uint16_t> indices) {
  const __m128i eight = _mm_set1_epi16(8);
  __m128i begin = _mm_setzero_si128();
  Unpacked done;
  for (; done.bytes < bitmap.size() && done.count + 8 <= indices.size(); ++done.bytes) {
    const auto bits = std::to_integer<unsigned>(bitmap[done.bytes]);
    const __m128i places =
        _mm_cvtepu8_epi16(_mm_cvtsi64_si128(static_cast<int64_t>(kBitPlaces[bits])));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(indices.data() + done.count),
                     _mm_add_epi16(places, begin));
    begin = _mm_add_epi16(begin, eight);
    done.count += static_cast<unsigned>(__builtin_popcount(bits));
  }
  return done;
}

#endif  // GRADWIRE_X86

/// Any count; `indices` holds them.
void unpack(const uint8_t* packed, size_t count, uint16_t* indices) {
  size_t done = 0;
#ifdef GRADWIRE_X86
  const Isa level = isa();
  done = level == Isa::kAvx512 ? unpack_avx512(packed, count, indices)
         : level == Isa::kAvx2 ? unpack_avx2(packed, count, indices)
                               : 0;
#endif
  unpack_plain(packed, done, count, indices);
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
  unpack(reinterpret_cast<const uint8_t*>(packed), indices.size(), indices.data());
}

bool packed_indices_ascend(const std::byte* packed, size_t count, size_t numel) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(packed);
  size_t checked = 1;
#ifdef GRADWIRE_X86
  if (isa() == Isa::kAvx512) {
    if (!pairs_ascend_avx512(bytes, count / 2)) {
      return false;
    }
    checked = std::max<size_t>(1, count / 2 * 2);
  }
#endif
  for (size_t i = checked; i < count; ++i) {
    if (load_index(bytes, count, i) <= load_index(bytes, count, i - 1)) {
      return false;
    }
  }
  return count == 0 || load_index(bytes, count, count - 1) < numel;
}

void pack_bitmap(std::span<const uint16_t> indices, std::span<std::byte> bitmap) {
  std::ranges::fill(bitmap, std::byte{0});
  for (const uint16_t index : indices) {
    bitmap[index / 8] |= std::byte{1} << (index % 8);
  }
}

size_t count_bits(std::span<const std::byte> bitmap) {
  size_t count = 0;
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= bitmap.size(); i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bitmap.data() + i, sizeof word);
    count += static_cast<size_t>(std::popcount(word));
  }
  for (; i < bitmap.size(); ++i) {
    count += static_cast<size_t>(std::popcount(std::to_integer<uint8_t>(bitmap[i])));
  }
  return count;
}

size_t unpack_bitmap(std::span<const std::byte> bitmap, std::span<uint16_t> indices) {
  size_t count = 0;
  size_t byte = 0;
#ifdef GRADWIRE_X86
  if (isa() >= Isa::kAvx2) {
    const Unpacked done = unpack_bitmap_avx2(bitmap, indices);
    byte = done.bytes;
    count = done.count;
  }
#endif
  for (; byte < bitmap.size(); ++byte) {
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

void accumulate_packed(const std::byte* packed, const std::byte* values, size_t count,
                       std::span<float> sum) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(packed);
  const Entries entries{bytes, values, count};
  size_t done = 0;
#ifdef GRADWIRE_X86
  const Isa level = isa();
  done = level == Isa::kAvx512 ? accumulate_avx512(entries, sum.data())
         : level == Isa::kAvx2 ? accumulate_avx2(entries, sum.data())
                               : 0;
#endif
  for (size_t i = done; i < count; ++i) {
    entries.add(i, load_index(bytes, count, i), sum.data());
  }
}

}  // namespace gradwire::cpu
