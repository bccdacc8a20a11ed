#include "gradwire/comm/internal/ready_rounds.h"

#include <algorithm>
#include <utility>

#include "gradwire/comm/fingerprint.h"

namespace gradwire {
namespace {

using std::chrono::microseconds;

constexpr microseconds kFirstPause{250};
constexpr microseconds kLongestPause = std::chrono::hours(1);  // longer than any deadline

}  // namespace

ReadyRounds::ReadyRounds(std::unique_ptr<Transport> transport,
                         const std::shared_ptr<ThreadPool>& pool, Callbacks callbacks)
    : transport_(std::move(transport)),
      callbacks_(std::move(callbacks)),
      worker_(Device{}, pool, "gw-ready") {}

void ReadyRounds::begin_step(size_t buckets) {
  const size_t bytes = ReadyBits::bytes_of(buckets);
  const std::lock_guard lock(mutex_);
  if (own_bits_.size() != bytes) {
    messages_ = Messages(transport_->world_size(), bytes);
  }
  own_bits_.assign(bytes, std::byte{0});
  begun_ = news_ = false;
  bits_ = ReadyBits(transport_->world_size(), buckets);
  pause_ = kFirstPause;
  trace_ = {};
}

void ReadyRounds::tell(BucketId b) {
  bool first;
  {
    const std::lock_guard lock(mutex_);
    own_bits_[b / 8] |= std::byte(1u << b % 8);
    news_ = true;
    first = !std::exchange(begun_, true);
  }
  if (first) {
    enqueue([this] { run(); });
  }
  changed_.notify_one();
}

void ReadyRounds::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
}

void ReadyRounds::run() {
  try {
    run_rounds();
  } catch (const TransportError& error) {
    callbacks_.fail(bits_.missing(), error.what(), error.peer());
  } catch (const std::exception& error) {
    callbacks_.fail(bits_.missing(), error.what(), -1);
  }
}

void ReadyRounds::run_rounds() {
  NextRound next = NextRound::kOnNews;
  while (next != NextRound::kOver && await_turn(next)) {
    run_round();
    for (const BucketId b : bits_.take_agreed()) {
      callbacks_.leave(b);
    }
    pause_ = bits_.brought_news() ? kFirstPause : std::min(pause_ * 3 / 2, kLongestPause);
    next = bits_.next_of(transport_->rank());
  }
}

bool ReadyRounds::await_turn(NextRound next) {
  std::unique_lock lock(mutex_);
  const auto ends = [this] { return news_ || stopped_; };
  if (next == NextRound::kOnNews) {
    changed_.wait(lock, ends);
  } else if (next == NextRound::kSoon) {
    changed_.wait_for(lock, pause_, ends);
  }
  const auto own = static_cast<size_t>(transport_->rank());
  std::ranges::copy(own_bits_, messages_.room(own).begin());
  messages_.length(own) = own_bits_.size();
  news_ = false;
  return !stopped_;
}

void ReadyRounds::run_round() {
  const auto own = static_cast<size_t>(transport_->rank());
  counted([this] { return transport_->counters(); }, trace_,
          [&] {
            transport_->all_gather(messages_.length(own), messages_.room(own), messages_.parts(),
                                   {fnv1a("ready buckets"), "ready buckets"}, worker_.context);
          });
  ++trace_.rounds;
  for (int r = 0; r < transport_->world_size(); ++r) {
    bits_.tell(r, messages_.message(static_cast<size_t>(r)));
  }
}

}  // namespace gradwire
