#pragma once
// How two ends of a connection show each other that they know the job's secret, without saying it.
//
//   server: Challenge{16 random bytes}
//   client: Proof{16 random bytes, HMAC(secret, "client", both)}
//   server: Verdict{accepted or refused, HMAC(secret, "server", both)}
//
// After it both send frames: u32 length, then as many bytes. They are neither encrypted nor signed:
// the secret keeps strangers and other jobs out, not whoever can change packets under way.

#include <array>
#include <cstdint>
#include <string_view>

#include "gradwire/comm/internal/sha256.h"
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

/// The client's side. @throws WrongPeer when the other end speaks another protocol or has another job
/// secret, TransportError when it closes or is silent past the deadline.
void prove(const Socket& socket, std::string_view secret, Deadline deadline);

/// Longest frame: far above any value or address, and keeps a length from becoming an allocation.
inline constexpr uint32_t kMaxFrameBytes = 4 << 20;

/// One frame. @throws TransportError as write_all() and read_all() do, or for one too long.
void write_frame(const Socket& socket, std::string_view bytes, Deadline deadline);
std::string read_frame(const Socket& socket, Deadline deadline);

}  // namespace gradwire
