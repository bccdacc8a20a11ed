#pragma once
// Does a transport work here? Every verb, with known bytes, against what a naive computation says.

#include <cstddef>

#include "gradwire/comm/transport.h"

namespace gradwire {

struct VerifyOptions {
  /// Bytes of the largest part of a message; smaller sizes around the places where the protocol
  /// changes its course are always run. The memory needed is about 8 times this and the world size.
  size_t largest_bytes = 400'003;
  /// Calls of each verb and size that are enqueued before the first of them is waited for.
  int calls_in_flight = 2;
};

/// Runs every verb of `transport`, and of two groups split from it, with bytes and lengths that
/// differ by rank, size and call, in memory of the stream's device, and compares what arrives. Sums
/// are of small integers, the same in any order of summation; bytes behind the true length of a
/// part are not looked at, those behind the whole buffer must stay. All ranks call it with the same
/// options; it returns or throws on all of them, and waits for the stream.
/// @throws TransportError naming verb, size, call, rank and the first wrong byte, or what the
/// transport itself threw, which is then finished; InvalidArgument for options out of range.
void verify_transport(Transport& transport, const VerifyOptions& options, Context& context);

}  // namespace gradwire
