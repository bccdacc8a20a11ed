// What index codecs would cost: bits per entry and decode rate of the two that the wire format has,
// 12-bit indices and bitmaps, and of two it might have, Golomb-Rice and Elias-Fano, each coding the
// chosen elements of a chunk of 4096 on their own. One thread; elements chosen at random, which is
// what a gradient's largest ones are like within a chunk, and the worst case for Golomb-Rice.
//
//   index_codecs [SECONDS per measurement, default 0.2]

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "gradwire/kernels/ops/sparse.h"

namespace {

constexpr size_t kChunk = 4096;
constexpr size_t kChunks = 1024;
constexpr size_t kSlack = 16;  // bytes that decoders may read behind a chunk

using Indices = std::vector<uint16_t>;

/// Appends bits, the lowest first.
class BitWriter {
 public:
  explicit BitWriter(std::vector<std::byte>& out) : out_(out) {}
  void put(uint64_t bits, int count) {
    for (int i = 0; i < count; ++i, bits >>= 1) {
      if (used_ == 0) {
        out_.push_back(std::byte{0});
      }
      out_.back() |= static_cast<std::byte>((bits & 1) << used_);
      used_ = (used_ + 1) % 8;
    }
  }

 private:
  std::vector<std::byte>& out_;
  int used_ = 0;
};

uint64_t load(const std::byte* from, size_t bit) {
  uint64_t word;
  std::memcpy(&word, from + bit / 8, sizeof word);
  return word >> bit % 8;
}

/// Low bits of a quotient by 2^l: what is best where gaps are geometric with this density.
int rice_bits(double density) {
  const double best = std::log2(std::log(2.0) / density);
  return std::clamp(static_cast<int>(std::lround(best)), 0, 11);
}

/// Gaps less one: the quotient in zeros and a one, then l bits.
void encode_rice(const Indices& indices, int l, std::vector<std::byte>& out) {
  BitWriter writer(out);
  int previous = -1;
  for (const uint16_t index : indices) {
    const auto gap = static_cast<uint32_t>(index - previous - 1);
    writer.put(0, static_cast<int>(gap >> l));
    writer.put(1, 1);
    writer.put(gap & ((1u << l) - 1), l);
    previous = index;
  }
}

void decode_rice(const std::byte* from, int l, std::span<uint16_t> indices) {
  size_t bit = 0;
  uint32_t next = 0;
  for (uint16_t& index : indices) {
    uint64_t word = load(from, bit);
    uint32_t quotient = 0;
    while (word == 0) {  // 57 zeros and more
      quotient += 56;
      bit += 56;
      word = load(from, bit);
    }
    const auto zeros = static_cast<uint32_t>(std::countr_zero(word));
    const uint32_t head = zeros + 1;
    const uint64_t behind = head + static_cast<uint32_t>(l) <= 57 ? word >> head
                                                                   : load(from, bit + head);
    const uint64_t low = behind & ((uint64_t{1} << l) - 1);
    bit += head + static_cast<uint32_t>(l);
    next += (quotient + zeros) << l | static_cast<uint32_t>(low);
    index = static_cast<uint16_t>(next++);
  }
}

/// l low bits of each, then a one for each, behind as many zeros as its upper bits say.
void encode_elias_fano(const Indices& indices, int l, std::vector<std::byte>& out) {
  BitWriter writer(out);
  for (const uint16_t index : indices) {
    writer.put(index & ((1u << l) - 1), l);
  }
  uint32_t upper = 0;
  for (const uint16_t index : indices) {
    writer.put(0, static_cast<int>((index >> l) - upper));
    writer.put(1, 1);
    upper = index >> l;
  }
}

void decode_elias_fano(const std::byte* from, int l, std::span<uint16_t> indices) {
  size_t low = 0;
  size_t bit = indices.size() * static_cast<size_t>(l);
  const uint64_t mask = (uint64_t{1} << l) - 1;
  uint32_t before = 0;  // zeros in words that are done
  for (size_t i = 0; i < indices.size();) {
    // 56 bits that are there whatever the shift.
    uint64_t word = load(from, bit) & ((uint64_t{1} << 56) - 1);
    uint32_t ones = 0;
    for (; word != 0 && i < indices.size(); word &= word - 1, ++i, ++ones) {
      const uint32_t upper = before + static_cast<uint32_t>(std::countr_zero(word)) - ones;
      indices[i] = static_cast<uint16_t>(upper << l | (load(from, low) & mask));
      low += static_cast<size_t>(l);
    }
    before += 56 - ones;
    bit += 56;
  }
}

struct Coded {
  std::vector<std::byte> bytes;
  std::vector<size_t> begin;  // of each chunk
};

template <class Encode>
Coded encode_all(const std::vector<Indices>& chunks, Encode&& encode) {
  Coded coded;
  for (const Indices& indices : chunks) {
    coded.begin.push_back(coded.bytes.size());
    encode(indices, coded.bytes);
  }
  coded.begin.push_back(coded.bytes.size());
  coded.bytes.resize(coded.bytes.size() + kSlack);
  return coded;
}

/// Checks that decoding gives the indices back, and prints bits and rate.
template <class Decode>
void report(const char* name, double density, const std::vector<Indices>& chunks,
            const Coded& coded, double seconds, Decode&& decode) {
  size_t entries = 0;
  std::vector<uint16_t> room(kChunk);
  for (size_t i = 0; i < chunks.size(); ++i) {
    entries += chunks[i].size();
    const std::span<uint16_t> to(room.data(), chunks[i].size());
    decode(coded, i, to);
    if (!std::equal(to.begin(), to.end(), chunks[i].begin())) {
      std::fprintf(stderr, "%s: chunk %zu does not decode to what was coded\n", name, i);
      std::exit(1);
    }
  }
  using Clock = std::chrono::steady_clock;
  std::vector<float> sum(kChunk), values(kChunk, 1.0f);
  double best[2] = {};  // decoding alone, and with the addition of as many values
  const auto begin = Clock::now();
  do {  // the fastest round: others share the machine
    for (const bool adds : {false, true}) {
      const auto start = Clock::now();
      for (size_t i = 0; i < chunks.size(); ++i) {
        const std::span<uint16_t> to(room.data(), chunks[i].size());
        decode(coded, i, to);
        if (adds) {
          gradwire::cpu::accumulate(std::span(values).first(to.size()), to, sum);
        }
        asm volatile("" : : "r"(room.data()), "r"(sum.data()) : "memory");
      }
      const std::chrono::duration<double> took = Clock::now() - start;
      best[adds] = std::max(best[adds], static_cast<double>(entries) / took.count());
    }
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  const double bits = 8.0 * static_cast<double>(coded.begin.back()) / static_cast<double>(entries);
  std::printf("%7.2f%%  %-12s %8.2f bits/entry %6.0f million entries/s, added %6.0f\n",
              100 * density, name, bits, best[0] / 1e6, best[1] / 1e6);
}

std::vector<Indices> choose(double density) {
  std::mt19937_64 random(20240607);
  std::vector<Indices> chunks(kChunks);
  const auto entries = static_cast<size_t>(std::ceil(density * kChunk * kChunks));
  std::vector<bool> chosen(kChunk * kChunks);
  for (size_t left = entries; left > 0;) {
    const size_t at = random() % chosen.size();
    left -= chosen[at] ? 0 : 1;
    chosen[at] = true;
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]) {
      chunks[i / kChunk].push_back(static_cast<uint16_t>(i % kChunk));
    }
  }
  return chunks;
}

void measure(double density, double seconds) {
  namespace cpu = gradwire::cpu;
  const std::vector<Indices> chunks = choose(density);
  const Coded packed = encode_all(chunks, [](const Indices& indices, std::vector<std::byte>& out) {
    const size_t at = out.size();
    out.resize(at + cpu::packed_index_bytes(indices.size()));
    cpu::pack_indices(indices, out.data() + at);
  });
  report("12-bit", density, chunks, packed, seconds, [](const Coded& c, size_t i, auto to) {
    cpu::unpack_indices(c.bytes.data() + c.begin[i], to);
  });
  const Coded bitmap = encode_all(chunks, [](const Indices& indices, std::vector<std::byte>& out) {
    const size_t at = out.size();
    out.resize(at + kChunk / 8);
    cpu::pack_bitmap(indices, std::span(out).subspan(at));
  });
  report("bitmap", density, chunks, bitmap, seconds, [](const Coded& c, size_t i, auto to) {
    cpu::unpack_bitmap(std::span(c.bytes).subspan(c.begin[i], kChunk / 8), to);
  });
  const int rice = rice_bits(density);
  const Coded golomb = encode_all(chunks, [&](const Indices& indices, std::vector<std::byte>& out) {
    encode_rice(indices, rice, out);
  });
  report("Golomb-Rice", density, chunks, golomb, seconds, [&](const Coded& c, size_t i, auto to) {
    decode_rice(c.bytes.data() + c.begin[i], rice, to);
  });
  const int low = std::clamp(static_cast<int>(std::log2(1 / density)), 0, 11);
  const Coded fano = encode_all(chunks, [&](const Indices& indices, std::vector<std::byte>& out) {
    encode_elias_fano(indices, low, out);
  });
  report("Elias-Fano", density, chunks, fano, seconds, [&](const Coded& c, size_t i, auto to) {
    decode_elias_fano(c.bytes.data() + c.begin[i], low, to);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.2;
  if (argc > 2 || seconds <= 0) {
    std::fprintf(stderr, "index_codecs: expected at most one argument, seconds above 0\n");
    return 2;
  }
  for (const double density : {0.0001, 0.001, 0.003, 0.01, 0.02, 0.05, 0.08, 0.1, 0.25}) {
    measure(density, seconds);
  }
  return 0;
}
