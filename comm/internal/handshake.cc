#include "gradwire/comm/internal/handshake.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace gradwire {
namespace {

template <class T>
std::span<char> chars_of(T& value) {
  return {reinterpret_cast<char*>(&value), sizeof(value)};
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  // Requests of up to 256 bytes are never cut short.
  while (getrandom(nonce.data(), nonce.size(), 0) < 0) {
    if (errno != EINTR) {
      throw TransportError(concat("getrandom: ", std::strerror(errno)));
    }
  }
  return nonce;
}

Digest proof_of(std::string_view whose, std::string_view secret, const Nonce& server,
                const Nonce& client) {
  std::string message(whose);
  message.append(server.begin(), server.end()).append(client.begin(), client.end());
  return hmac_sha256(secret, message);
}

void prove(const Socket& socket, std::string_view secret, Deadline deadline) {
  Challenge challenge;
  read_all(socket, chars_of(challenge), deadline);
  if (challenge.magic != Challenge::kMagic) {
    throw WrongPeer("it speaks another protocol");
  }
  Proof proof;
  proof.nonce = random_nonce();
  proof.digest = proof_of("client", secret, challenge.nonce, proof.nonce);
  write_all(socket, chars_of(proof), deadline);
  Verdict verdict;
  read_all(socket, chars_of(verdict), deadline);
  if (verdict.outcome != Verdict::kAccepted ||
      !same_digest(verdict.digest, proof_of("server", secret, challenge.nonce, proof.nonce))) {
    throw WrongPeer("it has another job secret");
  }
}

void write_frame(const Socket& socket, std::string_view bytes, Deadline deadline) {
  const auto length = static_cast<uint32_t>(bytes.size());
  std::string frame(reinterpret_cast<const char*>(&length), sizeof(length));
  write_all(socket, frame.append(bytes), deadline);
}

std::string read_frame(const Socket& socket, Deadline deadline) {
  uint32_t length = 0;
  read_all(socket, chars_of(length), deadline);
  if (length > kMaxFrameBytes) {
    throw TransportError(concat("it sent a frame of ", length, " bytes, expected at most ",
                                kMaxFrameBytes));
  }
  std::string bytes(length, '\0');
  read_all(socket, bytes, deadline);
  return bytes;
}

}  // namespace gradwire
