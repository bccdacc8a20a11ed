#include "gradwire/comm/internal/frame_seal.h"

#include <algorithm>
#include <cstring>

#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

constexpr size_t kTagBytes = 8;

template <class T>
std::string_view raw_bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

Digest FrameSeal::digest_of(std::string_view what, std::string_view bytes) const {
  std::string message(whose_);
  message.append(1, '\0').append(what).append(raw_bytes_of(count_)).append(bytes);
  return key_.empty() ? sha256(message) : hmac_sha256(key_, message);
}

std::string FrameSeal::seal(std::string_view bytes) {
  check(bytes.size() <= kMaxFrameBytes, "a frame of ", bytes.size(), " bytes, expected at most ",
        kMaxFrameBytes);
  const auto length = static_cast<uint32_t>(bytes.size());
  std::string frame(raw_bytes_of(length));
  frame.append(raw_bytes_of(digest_of("length", frame)).substr(0, kTagBytes));
  frame.append(raw_bytes_of(digest_of("bytes", bytes))).append(bytes);
  ++count_;
  return frame;
}

size_t FrameSeal::length_of(std::string_view head) const {
  uint32_t length = 0;
  std::memcpy(&length, head.data(), sizeof(length));
  Digest expected = digest_of("length", head.substr(0, sizeof(length)));
  Digest found = expected;
  std::memcpy(found.data(), head.data() + sizeof(length), kTagBytes);
  if (!same_digest(found, expected)) {
    throw BadFrame("the head of a frame changed on the way: its digest is another");
  }
  if (length > kMaxFrameBytes) {
    throw BadFrame(concat("a frame of ", length, " bytes, expected at most ", kMaxFrameBytes));
  }
  return length;
}

bool FrameSeal::take(std::string& input, std::string& bytes) {
  if (input.size() < kHeadBytes) {
    return false;
  }
  const size_t length = length_of(input);
  if (input.size() < kHeadBytes + length) {
    return false;
  }
  Digest digest;
  std::memcpy(digest.data(), input.data() + sizeof(uint32_t) + kTagBytes, sizeof(digest));
  bytes = input.substr(kHeadBytes, length);
  if (!same_digest(digest, digest_of("bytes", bytes))) {
    throw BadFrame(
        concat("a frame of ", length, " bytes changed on the way: its digest is another"));
  }
  input.erase(0, kHeadBytes + length);
  ++count_;
  return true;
}

}  // namespace gradwire
