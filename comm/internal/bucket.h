#pragma once
// A bucket of a plan at work: its memory, its compressors and its exchange.

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/plan.h"

namespace gradwire {

/// Microseconds on the reducer's clock between which a bucket was worked on.
struct BucketTimes {
  int64_t begin_us = 0;
  int64_t compressed_us = 0;
  int64_t end_us = 0;
};

/// Owns the gradient, the payloads and both residual buffers of one bucket. Which of the two
/// residual buffers is the committed one is the reducer's to say (`parity`).
class Bucket {
 public:
  /// `plan_fingerprint` is that of `plan`, worked out once for all buckets.
  Bucket(const Plan& plan, uint64_t plan_fingerprint, BucketId id, Transport& transport,
         uint32_t committed_step);
  Bucket(const Bucket&) = delete;  // the exchange refers to its members
  Bucket& operator=(const Bucket&) = delete;

  /// The bucket's own memory, where gradients are written unless the caller hands over theirs.
  Gradient gradient() const { return gradient_; }

  /// Compresses `gradient`, exchanges it and writes the mean into it: one task of the stream.
  template <class Clock>
  BucketTimes run(Gradient gradient, size_t parity, const Clock& now_us, Context& context) {
    BucketTimes times{.begin_us = now_us(), .compressed_us = 0, .end_us = 0};
    compress(gradient, parity, context);
    times.compressed_us = now_us();
    exchange_->run(slots_, report_, context);
    times.end_us = now_us();
    return times;
  }
  const ExchangeReport& report() const { return report_; }

  /// Makes the last run final, the parity apart.
  void commit();

  /// The residual of the elements [offset, offset + numel) of the bucket, which lie in one group;
  /// empty when that group has no feedback.
  Residual residual(size_t offset, size_t numel, size_t parity) const;

  /// Adds `values` to these elements: to their residual, or, in a group without feedback, to the
  /// gradient of the next step that commits.
  void carry_over(size_t offset, ConstResidual values, size_t parity);
  /// What carry_over() still holds for the next step; empty when nothing.
  ConstResidual carried(size_t offset, size_t numel) const;

  /// "bucket 2", and with what it does: "bucket 2 (gather, bf16 + topk:1%)".
  const std::string& label() const { return label_; }

 private:
  void compress(Gradient gradient, size_t parity, Context& context);
  void add_carried(Gradient gradient) const;
  size_t group_at(size_t offset) const;

  std::vector<PlanGroup> groups_;
  std::string what_, label_;
  Buffer gradient_memory_, payload_memory_;
  std::array<Buffer, 2> residuals_;
  std::vector<size_t> residual_offsets_;  // of each group with feedback, in floats
  std::vector<float> carried_;            // of the whole bucket, or empty
  Gradient gradient_;
  std::vector<std::unique_ptr<Compressor>> compressors_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<GroupSlot> slots_;
  ExchangeReport report_;
};

}  // namespace gradwire
