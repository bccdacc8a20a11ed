#pragma once
// Frames that show whether they changed on the way.
//
//   u32 length, 8 bytes of a digest of it, 32 bytes of a digest of what follows, the bytes
//
// Digests are HMAC-SHA-256 where there is a key, which nobody makes without it, else SHA-256, which
// finds damage alone. They are over the direction and the number of the frame too: a frame that was
// lost, repeated or turned back is a bad one.

#include <cstdint>
#include <string>
#include <string_view>

#include "gradwire/comm/internal/digest.h"
#include "gradwire/comm/point_to_point.h"

namespace gradwire {

/// Longest frame: far above any value or address, and keeps a length from becoming an allocation.
inline constexpr uint32_t kMaxFrameBytes = 4 << 20;

/// What arrived is no frame, or has changed on the way: the connection is to be ended.
class BadFrame : public TransportError {
 public:
  using TransportError::TransportError;
};

/// One direction of a connection; both ends have one each, which count alike.
class FrameSeal {
 public:
  /// `whose`: who sends, "client" or "server".
  FrameSeal(std::string_view key, std::string_view whose) : key_(key), whose_(whose) {}
  FrameSeal() = default;

  /// The frame as it travels. @throws InvalidArgument when it is too long.
  std::string seal(std::string_view bytes);

  static constexpr size_t kHeadBytes = 4 + 8 + sizeof(Digest);
  /// How many bytes follow the head. @throws BadFrame.
  size_t length_of(std::string_view head) const;
  /// Takes the first frame off `input` if all of it is there. @throws BadFrame.
  bool take(std::string& input, std::string& bytes);

 private:
  Digest digest_of(std::string_view what, std::string_view bytes) const;

  std::string key_, whose_;
  uint64_t count_ = 0;
};

}  // namespace gradwire
