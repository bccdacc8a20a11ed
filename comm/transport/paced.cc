#include "gradwire/comm/transport/paced.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "gradwire/comm/transport/frame.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;

/// The token bucket as a virtual clock: the line is busy until `busy_until_`, and a message may be
/// ahead of it by the burst.
class TokenBucket {
 public:
  explicit TokenBucket(const Pacing& pacing)
      : bits_per_second_(pacing.bits_per_second), burst_(line_time(pacing.burst_bytes())) {}

  Duration line_time(size_t bytes) const {
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(static_cast<double>(bytes) * 8.0 / bits_per_second_));
  }
  /// When the last of `bytes` that began to flow at `start` has passed.
  Deadline take(size_t bytes, Deadline start) {
    busy_until_ = std::max(busy_until_, start) + line_time(bytes);
    return busy_until_ - burst_;
  }

 private:
  double bits_per_second_;
  Duration burst_;
  Deadline busy_until_{};
};

enum class Passing : uint8_t { kFree, kQueued, kPassed };

struct Message {
  Passing state = Passing::kFree;
  bool sends = false;
  int peer = 0;
  uint64_t tag = 0;
  std::byte* data = nullptr;
  size_t size = 0;
  MessageHandle inner = 0;
  Deadline passes{};  // a send: when it leaves; a receive, once arrived: when it is complete
};

class PacedEngine final : public PointToPoint {
 public:
  PacedEngine(std::shared_ptr<PointToPoint> engine, const Pacing& pacing)
      : engine_(std::move(engine)), pacing_(pacing), egress_(pacing), ingress_(pacing) {}

  ~PacedEngine() override {
    bool pending = false;
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      pending = busy_ > 0;
      changed_.notify_all();
    }
    if (pending) {
      engine_->close("the transport was destroyed");
    }
    for (auto& [key, lane] : lanes_) {
      lane.thread.join();
    }
  }

  int rank() const override { return engine_->rank(); }
  int world_size() const override { return engine_->world_size(); }

  MessageHandle post_send(int destination, uint64_t tag,
                          std::span<const std::byte> bytes) override {
    std::lock_guard lock(mutex_);
    throw_if_failed();
    // Never written through: the inner engine gets it back as a const span.
    const size_t index = add({Passing::kQueued,
                              true,
                              destination,
                              tag,
                              const_cast<std::byte*>(bytes.data()),
                              bytes.size(),
                              0,
                              {}});
    messages_[index].passes = egress_.take(bytes.size(), Clock::now());
    queue({kSender, 0}, index);
    return index + 1;
  }

  MessageHandle post_recv(int source, uint64_t tag, std::span<std::byte> bytes) override {
    {
      std::lock_guard lock(mutex_);
      throw_if_failed();
    }
    const MessageHandle inner = engine_->post_recv(source, tag, bytes);
    std::lock_guard lock(mutex_);
    const size_t index =
        add({Passing::kQueued, false, source, tag, bytes.data(), bytes.size(), inner, {}});
    queue({source, group_of(tag)}, index);
    return index + 1;
  }

  void wait(MessageHandle handle, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const size_t index = handle - 1;
    const Duration patience = deadline - Clock::now();
    const auto passed = [&] { return failed_ || messages_[index].state == Passing::kPassed; };
    if (messages_[index].sends) {
      changed_.wait(lock, passed);  // waiting for the own bucket is nobody's silence
    } else if (!changed_.wait_until(lock, deadline, passed)) {
      const int peer = messages_[index].peer;
      fail_locked(concat("rank ", peer, " stayed silent past the deadline"), peer);
    }
    const Message message = messages_[index];
    if (!failed_ && !message.sends) {
      changed_.wait_until(lock, message.passes, [&] { return failed_; });
    }
    if (failed_) {
      leave(lock);
    }
    messages_[index].state = Passing::kFree;
    if (message.sends) {
      lock.unlock();
      try {
        engine_->wait(message.inner, Clock::now() + patience);
      } catch (const TransportError& error) {
        lock.lock();
        fail_locked(error.what(), error.peer());
        leave(lock);
      }
    }
  }

  void leave(std::string_view reason) noexcept override {
    engine_->leave(reason);
    close(reason);
  }

  void close(std::string_view reason) noexcept override {
    {
      std::lock_guard lock(mutex_);
      fail_locked(reason, -1);
    }
    engine_->close(reason);
  }

  Survivors rebuild(const RebuildOptions& options) override {
    Survivors next = engine_->rebuild(options);
    next.engine = std::make_shared<PacedEngine>(std::move(next.engine), pacing_);
    return next;
  }

 private:
  static constexpr int kSender = -1;  // in the place of a peer

  /// Messages one thread looks after, in order: all that is sent, or what one rank sends to this
  /// one in one group, whose calls do not overlap.
  struct Lane {
    std::deque<size_t> queue;
    FrameHeader header;  // of the call that arrives
    std::thread thread;
  };
  using LaneKey = std::pair<int, uint16_t>;  // peer and group

  size_t add(const Message& message) {
    size_t index = 0;
    while (index < messages_.size() && messages_[index].state != Passing::kFree) {
      ++index;
    }
    if (index == messages_.size()) {
      messages_.emplace_back();
    }
    messages_[index] = message;
    return index;
  }

  void queue(LaneKey key, size_t index) {
    Lane& lane = lanes_[key];  // references into a map stay valid
    lane.queue.push_back(index);
    ++busy_;
    if (!lane.thread.joinable()) {
      lane.thread = std::thread([this, key, &lane] { run(key.first, lane); });
    }
    changed_.notify_all();
  }

  void run(int peer, Lane& lane) {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !lane.queue.empty(); });
      if (lane.queue.empty()) {
        return;
      }
      const size_t index = lane.queue.front();
      lane.queue.pop_front();
      if (!failed_) {
        try {
          peer == kSender ? release(lock, index) : receive(lock, index, lane);
        } catch (const TransportError& error) {
          if (!lock.owns_lock()) {
            lock.lock();
          }
          fail_locked(error.what(), error.peer());
        }
      }
      --busy_;
      changed_.notify_all();
    }
  }

  void release(std::unique_lock<std::mutex>& lock, size_t index) {
    const Message message = messages_[index];
    changed_.wait_until(lock, message.passes, [this] { return failed_ || stop_; });
    if (failed_) {
      return;
    }
    lock.unlock();
    const MessageHandle inner =
        engine_->post_send(message.peer, message.tag, {message.data, message.size});
    lock.lock();
    messages_[index].inner = inner;
    messages_[index].state = Passing::kPassed;
  }

  void receive(std::unique_lock<std::mutex>& lock, size_t index, Lane& lane) {
    const Message message = messages_[index];
    lock.unlock();
    engine_->wait(message.inner, Clock::now() + std::chrono::hours(24 * 365));
    const Deadline arrived = Clock::now();
    const size_t bytes = true_size(message, lane);
    lock.lock();
    // It arrived with its last byte, so it began to flow a line time ago.
    messages_[index].passes = ingress_.take(bytes, arrived - ingress_.line_time(bytes));
    messages_[index].state = Passing::kPassed;
  }

  /// Receives are posted at their largest; the header in message 0 says how long it and its chunks
  /// are.
  static size_t true_size(const Message& message, Lane& lane) {
    if (is_first_message(message.tag)) {
      lane.header = read_frame_header({message.data, message.size});
      return kFrameHeaderBytes + std::min<uint64_t>(lane.header.bytes, kInlineBytes);
    }
    if (is_checksum(message.tag)) {
      return message.size;
    }
    const size_t chunk = chunk_bytes(lane.header.capacity);
    const uint64_t before = kInlineBytes + chunk_index(message.tag) * chunk;
    return lane.header.bytes <= before ? 0
                                       : std::min<uint64_t>(lane.header.bytes - before, chunk);
  }

  void fail_locked(std::string_view reason, int peer) {
    if (!failed_) {
      failed_ = true;
      reason_ = reason;
      peer_ = peer;
    }
    changed_.notify_all();
  }

  void throw_if_failed() const {
    if (failed_) {
      throw TransportError(reason_, peer_);
    }
  }

  /// Throws the failure, once no lane touches a posted buffer any more.
  [[noreturn]] void leave(std::unique_lock<std::mutex>& lock) {
    const std::string reason = reason_;
    lock.unlock();
    engine_->close(reason);
    lock.lock();
    changed_.wait(lock, [this] { return busy_ == 0; });
    throw TransportError(reason_, peer_);
  }

  std::shared_ptr<PointToPoint> engine_;
  Pacing pacing_;
  std::mutex mutex_;
  std::condition_variable changed_;
  TokenBucket egress_, ingress_;
  std::vector<Message> messages_;
  std::map<LaneKey, Lane> lanes_;
  size_t busy_ = 0;  // queued messages and those a lane works on
  bool stop_ = false;
  bool failed_ = false;
  std::string reason_;
  int peer_ = -1;
};

}  // namespace

std::shared_ptr<PointToPoint> make_paced_engine(std::shared_ptr<PointToPoint> engine,
                                                const Pacing& pacing) {
  check(std::isfinite(pacing.bits_per_second) && pacing.bits_per_second >= 1000, "pacing: rate is ",
        pacing.bits_per_second, " bit/s, must be at least 1000, or 0 for none");
  return std::make_shared<PacedEngine>(std::move(engine), pacing);
}

}  // namespace gradwire
