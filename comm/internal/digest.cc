#include "gradwire/comm/internal/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "gradwire/kernels/core/error.h"

namespace gradwire {

Digest sha256(std::string_view bytes) {
  Digest digest;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    throw Error("libcrypto makes no SHA-256 digest");
  }
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  Digest digest;
  // An empty key is still a key: HMAC() takes a null pointer for "as before".
  const char* const bytes = key.empty() ? "" : key.data();
  if (HMAC(EVP_sha256(), bytes, static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data(),
           nullptr) == nullptr) {
    throw Error("libcrypto makes no HMAC-SHA-256");
  }
  return digest;
}

bool same_digest(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), sizeof(Digest)) == 0;
}

std::string to_hex(const Digest& digest, size_t bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

}  // namespace gradwire
