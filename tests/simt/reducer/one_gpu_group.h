#pragma once
// Ranks that are threads and share one GPU: what a Reducer needs of a transport, made of copies
// between streams. Ranks wait for each other's calls, never for the GPU.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/comm/internal/agree.h"
#include "gradwire/comm/internal/host_words.h"
#include "gradwire/comm/transport.h"
#include "gradwire/kernels/core/event.h"

namespace gradwire::test {

inline constexpr Device kSharedGpu{DeviceType::kCuda, 0};

/// What the ranks of a group share.
class OneGpuGroup {
 public:
  explicit OneGpuGroup(int size) : posted_(static_cast<size_t>(size)) {
    for (Posted& posted : posted_) {
      posted = {{}, {}, make_event(kSharedGpu), make_event(kSharedGpu)};
    }
  }

  struct Posted {
    std::span<const std::byte> bytes;
    std::string text;
    std::unique_ptr<Event> written, read;
  };
  Posted& of(size_t rank) { return posted_[rank]; }
  std::vector<Posted>& all() { return posted_; }
  /// `stream` goes on behind the event; one thread at a time may say so.
  void hold(Event& event, Stream& stream) {
    std::lock_guard lock(mutex_);
    event.hold(stream);
  }

  /// Until all ranks are here. @throws TransportError after an abort.
  void meet() {
    std::unique_lock lock(mutex_);
    const uint64_t round = round_;
    if (++here_ == posted_.size()) {
      here_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || failure_; });
    if (failure_) {
      throw *failure_;
    }
  }
  void abort(std::string_view reason) {
    std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_.emplace(std::string(reason));
    }
    changed_.notify_all();
  }
  void throw_if_failed() {
    std::lock_guard lock(mutex_);
    if (failure_) {
      throw *failure_;
    }
  }

 private:
  std::vector<Posted> posted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t here_ = 0;
  uint64_t round_ = 0;
  std::optional<TransportError> failure_;
};

class OneGpuTransport final : public Transport {
 public:
  /// Each call's bytes take their time on a line of so many bits per second, where streams run what
  /// they are given at once; 0: none.
  OneGpuTransport(std::shared_ptr<OneGpuGroup> group, int rank, double bits_per_second = 0)
      : group_(std::move(group)), rank_(rank), bits_per_second_(bits_per_second) {}

  std::string_view name() const override { return "one_gpu"; }
  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(group_->all().size()); }
  TransportTraits traits() const override {
    return {.device = kSharedGpu, .true_lengths = false, .sums_in_rank_order = false};
  }

  void all_gather(const size_t&, std::span<const std::byte> mine, Parts all, CallTag,
                  Context& context) override {
    exchange(mine.first(all.stride), all, 0, context);
  }
  void all_to_all(Parts send, Parts receive, CallTag, Context& context) override {
    exchange(send.bytes, receive, static_cast<size_t>(rank_) * send.stride, context);
  }
  void agree(std::string_view what, std::string_view text, Context&) override {
    check_same_text(what, texts_beside(text));
  }
  std::vector<std::string> gather_words(std::string_view mine, size_t capacity, CallTag tag,
                                        Context&) override {
    constexpr size_t kAtOnce = 1000;
    return gather_host_words(
        mine, capacity, tag,
        {.round = [this](std::string_view piece) { return texts_beside(piece); },
         .most_bytes = kAtOnce});
  }

  void reduce_scatter(std::span<const float>, std::span<float>, CallTag, Context&) override {
    refuse("reduce_scatter");
  }
  void all_reduce_sum(std::span<float>, CallTag, Context&) override { refuse("all_reduce_sum"); }
  void broadcast(std::span<std::byte>, int, CallTag, Context&) override { refuse("broadcast"); }
  void barrier(CallTag, Context&) override { refuse("barrier"); }
  std::unique_ptr<Transport> split(int) override { refuse("split"); }
  void abort(std::string_view reason) noexcept override { group_->abort(reason); }
  void throw_if_failed() const override { group_->throw_if_failed(); }
  TrafficCounters counters() const override { return {}; }

 private:
  [[noreturn]] static void refuse(const char* verb) {
    throw InvalidArgument(concat("one_gpu: ", verb, " is not there"));
  }

  std::vector<std::string> texts_beside(std::string_view own) {
    group_->of(static_cast<size_t>(rank_)).text = own;
    group_->meet();
    std::vector<std::string> texts;
    for (const OneGpuGroup::Posted& posted : group_->all()) {
      texts.push_back(posted.text);
    }
    group_->meet();
    return texts;
  }

  // Part r of `receive` becomes the stride at `begin` of what rank r brings.
  void exchange(std::span<const std::byte> brought, Parts receive, size_t begin,
                Context& context) {
    OneGpuGroup::Posted& own = group_->of(static_cast<size_t>(rank_));
    own.bytes = brought;
    own.written->record(context.stream);
    group_->meet();
    for (size_t r = 0; r < group_->all().size(); ++r) {
      const OneGpuGroup::Posted& posted = group_->of(r);
      const auto from = posted.bytes.subspan(begin, receive.stride);
      const auto to = receive.bytes.subspan(r * receive.stride, receive.stride);
      receive.lengths[r] = receive.stride;
      if (from.data() != to.data()) {
        group_->hold(*posted.written, context.stream);
        copy_bytes(to, kSharedGpu, from, kSharedGpu, context.stream);
      }
    }
    own.read->record(context.stream);
    take_time_for(receive.stride * (group_->all().size() - 1));
    group_->meet();
    for (const OneGpuGroup::Posted& posted : group_->all()) {
      group_->hold(*posted.read, context.stream);  // nobody writes what another one still reads
    }
    group_->meet();
  }

  // In the caller, which runs what it enqueues.
  void take_time_for(size_t bytes) const {
    if (bits_per_second_ > 0) {
      std::this_thread::sleep_for(
          std::chrono::duration<double>(8.0 * static_cast<double>(bytes) / bits_per_second_));
    }
  }

  const std::shared_ptr<OneGpuGroup> group_;
  const int rank_;
  const double bits_per_second_;
};

}  // namespace gradwire::test
