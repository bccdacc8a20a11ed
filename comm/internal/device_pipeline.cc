#include "gradwire/comm/internal/device_pipeline.h"

#include <cstring>

#include "gradwire/kernels/ops/elementwise_cuda.h"

namespace gradwire {
namespace {

// What is enqueued on `to` from now on begins behind what is on `from`.
void order(Event& event, Stream& from, Stream& to) {
  event.record(from);
  event.hold(to);
}

}  // namespace

DevicePipeline::~DevicePipeline() {
  try {
    caller_.wait();
  } catch (const std::exception&) {
    // The device is broken: nothing runs on it any more, and the caller's next call says so.
  }
}

void DevicePipeline::begin_bucket(size_t b, Stream& compression) {
  order(*begun_[b], caller_, compression);
}

void DevicePipeline::hand_over(size_t b, Stream& compression, Stream& lane) {
  order(*compressed_[b], compression, lane);
}

void DevicePipeline::join(size_t l, Stream& lane) { order(*exchanged_[l], lane, caller_); }

void DevicePipeline::conclude(std::span<const Gradient> means, OnNonFinite policy,
                              float left_out) {
  for (const Gradient& mean : means) {
    cuda::fill_after_fault(state_->words(), mean, left_out, caller_);
  }
  state_->commit(policy, caller_);
  if (cuda::is_capturing(caller_)) {
    return;  // nobody could tell which replay a report is of
  }
  newest();
  first_ += last_ - first_ == kReports ? 1 : 0;
  const size_t slot = last_++ % kReports;
  const auto words = std::as_bytes(std::span(state_->words(), 1));
  copy_bytes(reports_.bytes().subspan(slot * words.size(), words.size()), {}, words,
             caller_.device(), caller_);
  reported_[slot]->record(caller_);
}

void DevicePipeline::begin_step(const std::shared_ptr<DeviceState>& state, size_t buckets,
                                size_t lanes) {
  const auto make_events = [this](auto& events, size_t count) {
    while (events.size() < count) {
      events.push_back(make_event(caller_.device()));
    }
  };
  make_events(begun_, buckets);
  make_events(compressed_, buckets);
  make_events(exchanged_, lanes);
  make_events(reported_, kReports);
  if (state_ != state) {
    state_ = state;
    forget_reports();
  }
}

void DevicePipeline::forget_faults() {
  state_->clear(caller_);
  forget_reports();
}

void DevicePipeline::forget_reports() {
  newest_.reset();
  first_ = last_;
}

// A report is read when its copy has passed, and before another one goes to the same place. No event
// may be asked while a stream is captured.
std::optional<cuda::StepWords> DevicePipeline::newest() {
  if (cuda::is_capturing(caller_)) {
    return newest_;
  }
  for (; first_ < last_ && reported_[first_ % kReports]->passed(); ++first_) {
    std::memcpy(&newest_.emplace(),
                reports_.bytes().data() + first_ % kReports * sizeof(cuda::StepWords),
                sizeof(cuda::StepWords));
  }
  return newest_;
}

}  // namespace gradwire
