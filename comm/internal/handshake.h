#pragma once
// How two ends of a connection show each other that they know the job's secret, without saying it.
//
//   server: Challenge{16 random bytes}
//   client: Proof{16 random bytes, HMAC(secret, "client", both)}
//   server: Verdict{accepted or refused, HMAC(secret, "server", both)}
//
// After it both send frames (frame_seal.h), with the secret as a key where there is one. They are not
// encrypted.

#include <array>
#include <cstdint>
#include <string_view>

#include "gradwire/comm/internal/frame_seal.h"
#include "gradwire/comm/internal/socket.h"

namespace gradwire {

using Nonce = std::array<uint8_t, 16>;

struct Challenge {
  static constexpr uint32_t kMagic = 0x31435747;  // "GWC1"
  uint32_t magic = kMagic;
  Nonce nonce{};
};
struct Proof {
  static constexpr uint32_t kMagic = 0x31505747;  // "GWP1"
  uint32_t magic = kMagic;
  Nonce nonce{};
  Digest digest{};
};
struct Verdict {
  static constexpr uint32_t kAccepted = 0x314b5747, kRefused = 0x314e5747;  // "GWK1", "GWN1"
  uint32_t outcome = kRefused;
  Digest digest{};
};

/// Random bytes of the system.
Nonce random_nonce();

/// Whose proof: "client" or "server".
Digest proof_of(std::string_view whose, std::string_view secret, const Nonce& server,
                const Nonce& client);

/// The other end is not the one looked for; trying again does not help.
class WrongPeer : public TransportError {
 public:
  using TransportError::TransportError;
};

/// The two directions of a connection that has been proven.
struct Seals {
  FrameSeal client, server;  ///< of what the client, and the server, sends
};
Seals seals_of(std::string_view secret, const Nonce& server, const Nonce& client);

/// The client's side: what the frames that follow, if there are any, are sealed with. @throws WrongPeer
/// when the other end speaks another protocol or has another job secret, TransportError when it closes
/// or is silent past the deadline.
Seals prove(const Socket& socket, std::string_view secret, Deadline deadline);

/// @throws TransportError as read_all() does, BadFrame.
std::string read_frame(const Socket& socket, FrameSeal& seal, Deadline deadline);

/// The client's end of a connection.
class ProvenSocket {
 public:
  /// @throws as prove() does.
  ProvenSocket(Socket socket, std::string_view secret, Deadline deadline)
      : socket_(std::move(socket)), seals_(prove(socket_, secret, deadline)) {}
  ProvenSocket() = default;

  const Socket& socket() const { return socket_; }
  /// One frame. @throws TransportError as write_all() and read_all() do, BadFrame.
  void write(std::string_view bytes, Deadline deadline);
  std::string read(Deadline deadline);

 private:
  Socket socket_;
  Seals seals_;
};

}  // namespace gradwire
