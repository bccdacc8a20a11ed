#pragma once
// 64-bit FNV-1a, for fingerprints that ranks compare (not for security).

#include <cstdint>
#include <string_view>

namespace gradwire {

inline constexpr uint64_t kFnvBasis = 14695981039346656037ull;

constexpr uint64_t fnv1a(std::string_view text, uint64_t hash = kFnvBasis) {
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  }
  return hash;
}

}  // namespace gradwire
