#pragma once
// Which gradients are ready on all ranks, for graphs whose order changes from step to step: a bit
// per tensor instead of a message per tensor. After Dong et al., "AIACC-Training" (ICDCS 2022).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradwire::planner {

/// A bit per tensor, ceil(n / 8) bytes; the bits beyond the last tensor are 0.
class ReadyBits {
 public:
  explicit ReadyBits(size_t tensors) : tensors_(tensors), bytes_((tensors + 7) / 8) {}

  size_t tensors() const { return tensors_; }
  std::span<const uint8_t> bytes() const { return bytes_; }
  /// @throws InvalidArgument for a tensor there is not.
  void set(size_t tensor);
  bool test(size_t tensor) const;
  size_t count() const;
  /// Keeps what is ready in both. @throws InvalidArgument for another number of tensors.
  void keep_common(const ReadyBits& other);

  bool operator==(const ReadyBits&) const = default;

 private:
  size_t tensors_;
  std::vector<uint8_t> bytes_;
};

/// What one round of a negotiation put on the line.
struct NegotiationTraffic {
  size_t steps = 0;            ///< messages one after another on the busiest rank
  uint64_t busiest_bytes = 0;  ///< sent and received by the busiest rank
  uint64_t messages = 0;       ///< of all ranks
  uint64_t bytes = 0;          ///< of all ranks, each message once
};

struct Negotiation {
  ReadyBits ready{0};  ///< on all ranks
  NegotiationTraffic traffic = {};
};

/// One round by recursive doubling: ranks meet in pairs, log2 P times, and each sends its vector of
/// ceil(n / 8) bytes; where P is no power of two the ranks beyond fold in before and are told
/// after. Every rank ends with the same vector: O(n / 8 * log P) bytes on every rank.
/// @throws InvalidArgument for no ranks, or vectors of different lengths.
Negotiation negotiate_by_bits(std::span<const ReadyBits> ranks);

/// The same by a master, as Horovod's first releases do: each rank sends one message of
/// `message_bytes` per ready tensor to rank 0, which sends each tensor that is ready everywhere to
/// every rank: O(n P) messages on rank 0. @throws InvalidArgument as negotiate_by_bits().
Negotiation negotiate_by_master(std::span<const ReadyBits> ranks, size_t message_bytes);

/// ceil(n / 8).
size_t readiness_bytes(size_t tensors);

}  // namespace gradwire::planner
