// One pass over a chunk: x = g + e in registers, groups of 64 elements, and a branch only for
// groups that hold an entry. NaN and infinity are above any threshold when compared as integers,
// so they become entries without a test of their own.

#include <algorithm>
#include <bit>
#include <cstring>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/select_scan.h"

#ifdef GRADWIRE_X86
// GCC 12 takes the undefined lanes inside its own header for a mistake.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace gradwire::cpu {
namespace {

constexpr size_t kGroup = 64;

inline int32_t magnitude(float x) { return std::bit_cast<int32_t>(x) & 0x7FFFFFFF; }

template <class T>
inline float load_element(const std::byte* g, size_t i) {
  T element;
  std::memcpy(&element, g + i * sizeof(T), sizeof(T));
  return to_float(element);
}

/// Elements [begin, end); entries are appended behind the first `found`. @returns how many then.
template <class T, bool kFeedback>
size_t scan_plain(const ChunkScan& scan, size_t begin, size_t end, EntryList room, size_t found) {
  const auto below = static_cast<int32_t>(scan.below);
  const auto zero_above = static_cast<int32_t>(scan.zero_above);
  for (size_t base = begin; base < end; base += kGroup) {
    const size_t count = std::min(kGroup, end - base);
    float x[kGroup];
    for (size_t i = 0; i < count; ++i) {
      x[i] = load_element<T>(scan.g, base + i);
    }
    if constexpr (kFeedback) {
      for (size_t i = 0; i < count; ++i) {
        x[i] += scan.e[base + i];
      }
    }
    int32_t largest = 0;
    for (size_t i = 0; i < count; ++i) {
      largest = std::max(largest, magnitude(x[i]));
    }
    if constexpr (kFeedback) {
      for (size_t i = 0; i < count; ++i) {
        scan.e_next[base + i] = magnitude(x[i]) > zero_above ? 0.0f : x[i];
      }
    }
    if (largest > below) {
      for (size_t i = 0; i < count; ++i) {
        room.values[found] = x[i];
        room.indices[found] = static_cast<uint16_t>(base + i);
        found += magnitude(x[i]) > below ? 1 : 0;
      }
    }
  }
  return found;
}

size_t keep_above_plain(EntryList entries, size_t count, const EntryCut& cut, LateWrites& writes) {
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    const float x = entries.values[i];
    const uint16_t index = entries.indices[i];
    entries.values[kept] = x;
    entries.indices[kept] = index;
    const bool keep = magnitude(x) > static_cast<int32_t>(cut.below);
    const bool zero = magnitude(x) > static_cast<int32_t>(cut.zero_above);
    kept += keep ? 1 : 0;
    if (keep != zero && cut.e_next != nullptr) {
      writes.add(cut.e_next + index, keep ? 0.0f : x);
    }
  }
  return kept;
}

#ifdef GRADWIRE_X86

template <class T>
GRADWIRE_AVX2 inline __m256 load_8(const std::byte* g, size_t i) {
  const std::byte* const from = g + i * sizeof(T);
  if constexpr (std::is_same_v<T, float>) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  } else {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return std::is_same_v<T, float16>
               ? _mm256_cvtph_ps(halves)
               : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
}

template <class T, bool kFeedback>
GRADWIRE_AVX2 size_t scan_avx2(const ChunkScan& scan, size_t begin, size_t end, EntryList room,
                               size_t found) {
  const std::byte* const g = scan.g;
  const float* const e = scan.e;
  float* const e_next = scan.e_next;
  const bool past_cache = scan.past_cache;
  const __m256i below = _mm256_set1_epi32(static_cast<int32_t>(scan.below));
  const __m256i zero_above = _mm256_set1_epi32(static_cast<int32_t>(scan.zero_above));
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7FFFFFFF);
  for (size_t base = begin; base < end; base += kGroup) {
    alignas(32) float x[kGroup];
    uint64_t marks = 0;
    for (size_t i = 0; i < kGroup; i += 8) {
      __m256 eight = load_8<T>(g, base + i);
      if constexpr (kFeedback) {
        eight = _mm256_add_ps(eight, _mm256_loadu_ps(e + base + i));
      }
      const __m256i bits = _mm256_and_si256(_mm256_castps_si256(eight), magnitude_bits);
      const __m256 above = _mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, below));
      marks |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_ps(above))) << i;
      _mm256_store_ps(x + i, eight);
      if constexpr (kFeedback) {
        const __m256 zero = _mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, zero_above));
        const __m256 rest = _mm256_andnot_ps(zero, eight);
        if (past_cache) {
          _mm256_stream_ps(e_next + base + i, rest);
        } else {
          _mm256_storeu_ps(e_next + base + i, rest);
        }
      }
    }
    for (; marks != 0; marks &= marks - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(marks));
      room.values[found] = x[i];
      room.indices[found++] = static_cast<uint16_t>(base + i);
    }
  }
  return found;
}

template <class T>
GRADWIRE_AVX512 inline __m512 load_16(const std::byte* g, size_t i) {
  const std::byte* const from = g + i * sizeof(T);
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_loadu_ps(from);
  } else {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return std::is_same_v<T, float16>
               ? _mm512_cvtph_ps(halves)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
}

/// Compressing in registers: storing through a mask would take several times longer on Zen 4.
template <class T, bool kFeedback>
GRADWIRE_AVX512 size_t scan_avx512(const ChunkScan& scan, size_t begin, size_t end, EntryList room,
                                   size_t found) {
  const std::byte* const g = scan.g;
  const float* const e = scan.e;
  float* const e_next = scan.e_next;
  const bool past_cache = scan.past_cache;
  const __m512i below = _mm512_set1_epi32(static_cast<int32_t>(scan.below));
  const __m512i zero_above = _mm512_set1_epi32(static_cast<int32_t>(scan.zero_above));
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i positions = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (size_t base = begin; base < end; base += kGroup) {
    __m512 x[4];
    __mmask16 above[4];
    for (size_t j = 0; j < 4; ++j) {
      x[j] = load_16<T>(g, base + 16 * j);
      if constexpr (kFeedback) {
        x[j] = _mm512_add_ps(x[j], _mm512_loadu_ps(e + base + 16 * j));
      }
      const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x[j]), magnitude_bits);
      above[j] = _mm512_cmpgt_epi32_mask(bits, below);
      if constexpr (kFeedback) {
        const __m512 rest = _mm512_maskz_mov_ps(_mm512_cmple_epi32_mask(bits, zero_above), x[j]);
        if (past_cache) {
          _mm512_stream_ps(e_next + base + 16 * j, rest);
        } else {
          _mm512_storeu_ps(e_next + base + 16 * j, rest);
        }
      }
    }
    if ((above[0] | above[1] | above[2] | above[3]) != 0) {
      for (size_t j = 0; j < 4; ++j) {
        const __m512i at =
            _mm512_add_epi32(positions, _mm512_set1_epi32(static_cast<int>(base + 16 * j)));
        _mm512_storeu_ps(room.values + found, _mm512_maskz_compress_ps(above[j], x[j]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(room.indices + found),
                            _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(above[j], at)));
        found += static_cast<size_t>(std::popcount(static_cast<uint32_t>(above[j])));
      }
    }
  }
  return found;
}

GRADWIRE_AVX512 size_t keep_above_avx512(EntryList entries, size_t count, const EntryCut& cut,
                                         LateWrites& writes) {
  const __m512i below = _mm512_set1_epi32(static_cast<int32_t>(cut.below));
  const __m512i zero_above = _mm512_set1_epi32(static_cast<int32_t>(cut.zero_above));
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7FFFFFFF);
  size_t kept = 0;
  for (size_t i = 0; i < count; i += 16) {
    const auto valid = static_cast<__mmask16>(count - i < 16 ? (1u << (count - i)) - 1 : 0xFFFFu);
    const __m512 x = _mm512_maskz_loadu_ps(valid, entries.values + i);
    const __m512i indices =
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, entries.indices + i));
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), magnitude_bits);
    const __mmask16 keep = _mm512_mask_cmpgt_epi32_mask(valid, bits, below);
    if (cut.e_next != nullptr) {
      const __mmask16 zero = _mm512_mask_cmpgt_epi32_mask(valid, bits, zero_above);
      for (uint32_t change = _kxor_mask16(keep, zero); change != 0; change &= change - 1) {
        const auto bit = static_cast<size_t>(std::countr_zero(change));
        writes.add(cut.e_next + entries.indices[i + bit],
                   (keep >> bit & 1) != 0 ? 0.0f : entries.values[i + bit]);
      }
    }
    // Never past what was loaded: `kept` is at most i.
    const uint32_t mine = static_cast<uint32_t>(std::popcount(static_cast<uint32_t>(keep)));
    const auto written = static_cast<__mmask16>((1u << mine) - 1);
    _mm512_mask_storeu_ps(entries.values + kept, written, _mm512_maskz_compress_ps(keep, x));
    _mm256_mask_storeu_epi16(entries.indices + kept, written,
                             _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(keep, indices)));
    kept += mine;
  }
  return kept;
}

/// Elements before the first whose place in e_next may be written past the caches.
size_t unaligned_head(const ChunkScan& scan) {
  const size_t off = reinterpret_cast<uintptr_t>(scan.e_next) % 64 / sizeof(float);
  return scan.past_cache && off != 0 ? std::min(scan.count, 16 - off) : 0;
}

#endif  // GRADWIRE_X86

template <class T, bool kFeedback>
size_t scan_as(const ChunkScan& scan, EntryList room) {
  size_t done = 0;
  size_t found = 0;
#ifdef GRADWIRE_X86
  const Isa level = isa();
  if (level != Isa::kPlain) {
    if (scan.past_cache && kFeedback) {
      prefetch_end({scan.e_next, scan.count});
    }
    done = unaligned_head(scan);
    found = scan_plain<T, kFeedback>(scan, 0, done, room, 0);
    const size_t end = done + (scan.count - done) / kGroup * kGroup;
    found = level == Isa::kAvx512 ? scan_avx512<T, kFeedback>(scan, done, end, room, found)
                                  : scan_avx2<T, kFeedback>(scan, done, end, room, found);
    done = end;
  }
#endif
  return scan_plain<T, kFeedback>(scan, done, scan.count, room, found);
}

}  // namespace

size_t scan_chunk(const ChunkScan& scan, EntryList room) {
  return dispatch(scan.dtype, [&]<class T>() {
    return scan.e == nullptr ? scan_as<T, false>(scan, room) : scan_as<T, true>(scan, room);
  });
}

size_t keep_above(EntryList entries, size_t count, const EntryCut& cut, LateWrites& writes) {
#ifdef GRADWIRE_X86
  if (isa() == Isa::kAvx512) {
    return keep_above_avx512(entries, count, cut, writes);
  }
#endif
  return keep_above_plain(entries, count, cut, writes);
}

}  // namespace gradwire::cpu
