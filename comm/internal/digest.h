#pragma once
// SHA-256 and HMAC-SHA-256, by OpenSSL's libcrypto.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gradwire {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view bytes);

/// Keyed digest: nobody makes it without the key.
Digest hmac_sha256(std::string_view key, std::string_view message);

/// Compares in the same time wherever they differ.
bool same_digest(const Digest& a, const Digest& b);

/// The first `bytes` of a digest in hexadecimal.
std::string to_hex(const Digest& digest, size_t bytes = sizeof(Digest));

}  // namespace gradwire
