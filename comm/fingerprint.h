#pragma once
// 64-bit FNV-1a, for fingerprints that ranks compare (not for security).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gradwire {

inline constexpr uint64_t kFnvBasis = 14695981039346656037ull;

constexpr uint64_t fnv1a(std::string_view text, uint64_t hash = kFnvBasis) {
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  }
  return hash;
}

constexpr uint64_t fnv1a(std::span<const std::byte> bytes) {
  uint64_t hash = kFnvBasis;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<uint64_t>(byte)) * 1099511628211ull;
  }
  return hash;
}

}  // namespace gradwire
