#pragma once
// What the line between the ranks costs, measured when a job starts.

#include <chrono>
#include <cstddef>
#include <span>

#include "gradwire/comm/transport.h"

namespace gradwire {

/// A message of n bytes takes alpha_s + n * beta_s_per_byte, one after another on a rank's line.
struct LinkCosts {
  double alpha_s = 0;
  double beta_s_per_byte = 0;
};

struct ProbeOptions {
  /// What the three calls of the largest size may take beside their start-up, which calls of any
  /// size take: sizes grow eightfold, the last one by what fits, and no larger one is tried where
  /// not even twice the bytes would.
  std::chrono::microseconds budget{5000};
  size_t most_bytes = size_t{1} << 20;  ///< of a message
};

/// Collective: times all-gathers of 64 bytes to options.most_bytes on rank 0 (the fastest of three
/// of each size), in which every rank sends and receives one message per peer, fits the line and
/// tells the others: the same figures on every rank. Zero for one rank. `context` is of the
/// transport's device: on a GPU messages lie there and the stream is waited for, so what that takes
/// is in alpha. Short bursts that a link lets through unshaped make a small most_bytes or budget
/// see a faster line than a long exchange does.
LinkCosts probe_link(Transport& transport, Context& context, const ProbeOptions& options = {});

/// One measurement.
struct MessageTime {
  double bytes = 0;
  double seconds = 0;  ///< positive
};

/// The line through the smallest and the largest message, neither cost below zero. Between them a
/// link's burst lets messages pass that are faster than any line, which least squares would follow.
/// @throws InvalidArgument for none, or a time that is not positive.
LinkCosts fit_link(std::span<const MessageTime> times);

}  // namespace gradwire
