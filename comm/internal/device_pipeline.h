#pragma once
// What a reducer on a GPU has beside its streams: the events that order them and the caller's, and what
// the host has heard of steps that are over. No call but the destructor waits.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gradwire/kernels/compress/device_state.h"
#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/pinned.h"

namespace gradwire {

class DevicePipeline {
 public:
  /// `caller` is the stream on which gradients are written and means read; it outlives this.
  explicit DevicePipeline(Stream& caller) : caller_(caller) {}
  /// Waits for the caller's stream, whose work uses memory of the reducer.
  ~DevicePipeline();
  DevicePipeline(const DevicePipeline&) = delete;
  DevicePipeline& operator=(const DevicePipeline&) = delete;

  Stream& caller() const { return caller_; }

  /// The next step is of so many buckets, whose commit changes `state`. Of another state reports until
  /// here are read no more.
  void begin_step(const std::shared_ptr<DeviceState>& state, size_t buckets, size_t lanes);

  /// `compression` goes on behind all that the caller has enqueued so far.
  void begin_bucket(size_t b, Stream& compression);
  /// `lane` goes on behind all that `compression` has so far.
  void hand_over(size_t b, Stream& compression, Stream& lane);
  /// The caller's stream goes on behind all that lane number `l` has so far.
  void join(size_t l, Stream& lane);

  /// Enqueues the end of a step: means of a step with a fault become `left_out`, the commit, and the
  /// report of it.
  void conclude(std::span<const Gradient> means, OnNonFinite policy, float left_out);

  /// Enqueues forgetting what stopped commits; reports of steps until here are read no more.
  void forget_faults();

  /// The words after the newest step that is known to be over; none known: nothing.
  std::optional<cuda::StepWords> newest();

 private:
  void forget_reports();

  /// Steps that can be under way before the oldest one's report is overwritten unread.
  static constexpr size_t kReports = 4;

  Stream& caller_;
  std::shared_ptr<DeviceState> state_;
  std::vector<std::unique_ptr<Event>> begun_, compressed_, exchanged_;
  PinnedBuffer reports_{kReports * sizeof(cuda::StepWords)};
  std::vector<std::unique_ptr<Event>> reported_;
  size_t first_ = 0, last_ = 0;  // reports that have not been read
  std::optional<cuda::StepWords> newest_;
};

}  // namespace gradwire
