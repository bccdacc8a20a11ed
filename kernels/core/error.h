#pragma once
// The three kinds of failure gradwire reports, and the check that raises them. Every message
// reads "what: the value, what was expected", and an unknown name lists the known ones.

#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gradwire {

/// Root of every exception thrown on purpose by gradwire.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller can fix it: a value out of range, mismatched shapes, an unknown name.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A gradient held NaN or infinity on some rank; no rank committed anything and the group lives on.
class NonFiniteGradient : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// A device call failed; the message names the call. Also: the build has no CUDA.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// The group of ranks is finished: a peer died, stayed silent past the deadline, or sent bytes that
/// do not belong to this exchange. `peer()` is the rank at fault, -1 when unknown.
class TransportError : public Error {
 public:
  explicit TransportError(const std::string& message, int peer = -1)
      : Error(message), peer_(peer) {}
  int peer() const noexcept { return peer_; }

 private:
  int peer_;
};

/// Joins the parts into one string, each as `operator<<` prints it.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws InvalidArgument with the joined parts unless `condition` holds.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]] {
    throw InvalidArgument(concat(parts...));
  }
}

/// Throws InvalidArgument `"<kind>: unknown name '<name>', known: a, b, c"`.
[[noreturn]] inline void throw_unknown_name(std::string_view kind, std::string_view name,
                                            std::span<const std::string_view> known) {
  std::ostringstream out;
  out << kind << ": unknown name '" << name << "', known: ";
  for (size_t i = 0; i < known.size(); ++i) {
    out << (i == 0 ? "" : ", ") << known[i];
  }
  throw InvalidArgument(out.str());
}

}  // namespace gradwire
