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

Seals seals_of(std::string_view secret, const Nonce& server, const Nonce& client) {
  // Of this connection alone: no frame of another is one of it.
  std::string key;
  if (!secret.empty()) {
    const Digest digest = proof_of("frames", secret, server, client);
    key.assign(digest.begin(), digest.end());
  }
  return {FrameSeal(key, "client"), FrameSeal(key, "server")};
}

Seals prove(const Socket& socket, std::string_view secret, Deadline deadline) {
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
  return seals_of(secret, challenge.nonce, proof.nonce);
}

void ProvenSocket::write(std::string_view bytes, Deadline deadline) {
  write_all(socket_, seals_.client.seal(bytes), deadline);
}

std::string ProvenSocket::read(Deadline deadline) {
  return read_frame(socket_, seals_.server, deadline);
}

std::string read_frame(const Socket& socket, FrameSeal& seal, Deadline deadline) {
  std::string input(FrameSeal::kHeadBytes, '\0'), bytes;
  read_all(socket, input, deadline);
  const size_t length = seal.length_of(input);
  input.resize(FrameSeal::kHeadBytes + length);
  read_all(socket, std::span(input).subspan(FrameSeal::kHeadBytes), deadline);
  seal.take(input, bytes);
  return bytes;
}

}  // namespace gradwire
