#include "gradwire/comm/internal/sha256.h"

#include <algorithm>
#include <bit>

namespace gradwire {
namespace {

// Fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

// FIPS 180-4, 6.2.2.
void add_block(State& state, const char* block) {
  uint32_t words[64];
  for (int t = 0; t < 16; ++t) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
      word = word << 8 | static_cast<uint8_t>(block[4 * t + i]);
    }
    words[t] = word;
  }
  for (int t = 16; t < 64; ++t) {
    const uint32_t a = words[t - 15], b = words[t - 2];
    words[t] = words[t - 16] + words[t - 7] +
               (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + kRounds[t] + words[t];
    const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                        ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const State sums{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) {
    state[i] += sums[i];
  }
}

std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

Digest sha256(std::string_view bytes) {
  State state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  constexpr size_t kBlock = 64;
  const size_t whole = bytes.size() / kBlock * kBlock;
  for (size_t i = 0; i < whole; i += kBlock) {
    add_block(state, bytes.data() + i);
  }
  // A one bit, zeros, and the length in bits fill the last one or two blocks.
  std::string tail(bytes.substr(whole));
  tail += static_cast<char>(0x80);
  while (tail.size() % kBlock != kBlock - 8) {
    tail += '\0';
  }
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) {
    tail += static_cast<char>(bits >> shift & 0xFF);
  }
  for (size_t i = 0; i < tail.size(); i += kBlock) {
    add_block(state, tail.data() + i);
  }
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  const Digest short_key = sha256(key);
  std::string inner(key.size() > 64 ? bytes_of(short_key) : key);
  inner.resize(64, '\0');
  std::string outer = inner;
  for (size_t i = 0; i < inner.size(); ++i) {
    inner[i] = static_cast<char>(inner[i] ^ 0x36);
    outer[i] = static_cast<char>(outer[i] ^ 0x5c);
  }
  const Digest digest = sha256(inner.append(message));
  return sha256(outer.append(bytes_of(digest)));
}

bool same_digest(const Digest& a, const Digest& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

std::string to_hex(const Digest& digest, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < std::min(bytes, digest.size()); ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
  }
  return text;
}

}  // namespace gradwire
