#pragma once
// What ranks have told each other of a step: which buckets are ready where, and whose turn it is.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradwire/comm/plan.h"

namespace gradwire {

/// When a rank without news begins the next round.
enum class NextRound : uint8_t {
  kOver,    ///< never: every bucket is ready on every rank
  kAtOnce,  ///< now: nothing can come of it but by a rank that has news then, for which this one
            ///< waits
  kOnNews,  ///< not at all: no bucket waits that this rank has told of
  kSoon,    ///< after a pause: of every rank some bucket waits, so that all would call in vain
};

/// Bits of all ranks, a bit for each bucket, which only ever rise within a step. The same on all
/// ranks behind the same round. No ranks, no network.
class ReadyBits {
 public:
  ReadyBits(int world_size, size_t buckets);

  /// Of one rank's bits as they travel: ceil(buckets / 8). Bucket b is bit b mod 8 of byte b / 8.
  static constexpr size_t bytes_of(size_t buckets) { return (buckets + 7) / 8; }

  /// What `rank` has told in this round. @throws TransportError naming the rank when these are not
  /// so many bytes, speak of buckets that are none, or take back what it told before.
  void tell(int rank, std::span<const std::byte> bits);

  /// The buckets that this round has shown to be ready everywhere, ascending. Valid until the next
  /// call; begins the next round.
  std::span<const BucketId> take_agreed();
  /// Whether any rank told of a bucket that it had not told of before, in the round taken last.
  bool brought_news() const { return brought_news_; }

  NextRound next_of(int rank) const;

  /// Which ranks have not told of which buckets that others wait with, "" for none: "bucket 3 of
  /// rank 1, bucket 4 of ranks 0 and 1". Five buckets at the most.
  std::string missing() const;

 private:
  size_t place(size_t rank, size_t bucket) const { return rank * buckets_ + bucket; }

  size_t ranks_, buckets_;
  std::vector<uint8_t> told_;        // of each rank, of each bucket: whether
  std::vector<size_t> told_by_;      // of each rank: buckets
  std::vector<size_t> ranks_ready_;  // of each bucket
  std::vector<BucketId> agreed_;     // in the round taken last
  size_t agreed_so_far_ = 0;
  bool news_ = false, brought_news_ = false;
};

}  // namespace gradwire
