#pragma once
// The engine behind the Gloo plug-in's C interface: posted messages, who waits for them until when,
// and the end of it all. Part of gloo_plugin.cc; not installed as an interface.

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/comm/internal/gloo_plugin_context.h"
#include "gradwire/comm/internal/gloo_plugin_doorbell.h"
#include "gradwire/comm/internal/gloo_plugin_farewells.h"

using std::chrono::milliseconds;

/// A posted message. Its buffer lives until the message has been waited for.
struct Slot {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  bool sends = false;
  int peer = -1;
  bool busy = false;  // some thread waits for it, until:
  std::chrono::steady_clock::time_point deadline{};
  bool late = false;  // the deadline has passed
};

// What a kernel holds for a peer leaves within it over any link that training bears.
constexpr milliseconds kLongestParting{60000};

/// Closing from any thread wakes all waits; the context is not used after it, only destroyed.
struct gradwire_plugin_engine {
  static constexpr const char* kTransport = "gloo";

  explicit gradwire_plugin_engine(const gradwire_plugin_options& options)
      : patience_(std::min(milliseconds(options.timeout_ms), kLongestParting)) {
    std::vector<Descriptor> sockets;
    for (int peer = 0; peer < options.world_size; ++peer) {
      sockets.emplace_back(options.sockets[peer]);
    }
    gloo::transport::tcp::attr attributes;
    attributes.hostname = options.address;  // by an interface's name Gloo would take its first one
    const auto device = std::static_pointer_cast<gloo::transport::tcp::Device>(
        gloo::transport::tcp::CreateDevice(attributes));
    context_ = std::make_shared<ConnectedContext>(device, options.rank, options.world_size);
    context_->setTimeout(patience_);
    for (int peer = 0; peer < options.world_size; ++peer) {
      if (peer != options.rank) {
        context_->add_pair(peer, std::move(sockets[static_cast<size_t>(peer)]));
      }
    }
    doorbell_ = std::make_unique<Doorbell>(device, [this] { start_queued(); });
    farewells_ = std::make_unique<Farewells>(
        context_, [this](int peer, const std::string& why) { lose(peer, why); });
    farewells_->start();
    timer_thread_ = std::thread([this] { watch_deadlines(); });
  }

  ~gradwire_plugin_engine() {
    leave();
    withdraw();
    farewells_.reset();
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    timer_.notify_all();
    timer_thread_.join();
  }

  // Gloo's thread starts it: Gloo polls a pair again and again, a core's worth, while another
  // thread holds the pair, be it to write or because the scheduler took that thread's core away.
  int post(bool sends, int peer, uint64_t tag, std::pair<void*, size_t> bytes, uint64_t* message,
           gradwire_plugin_error* error) {
    auto buffer = context_->createUnboundBuffer(bytes.first, bytes.second);
    {
      std::lock_guard lock(mutex_);
      if (!closed_) {
        gloo::transport::UnboundBuffer* const posted = buffer.get();
        *message = keep(std::move(buffer), sends, peer);
        // Whoever empties the queue has this one too.
        const bool alone = queue_.empty();
        queue_.push_back({posted, sends, peer, tag});
        if (alone) {
          doorbell_->ring();
        }
        return GRADWIRE_PLUGIN_DONE;
      }
    }
    withdraw();
    return closed_outcome(error);
  }

  int wait(uint64_t message, int64_t timeout_ms, gradwire_plugin_error* error) {
    gloo::transport::UnboundBuffer* buffer = nullptr;
    bool sends = false;
    {
      std::lock_guard lock(mutex_);
      Slot& slot = slots_[message];
      if (slot.buffer) {
        slot.busy = true;
        slot.deadline = std::chrono::steady_clock::now() + milliseconds(timeout_ms);
        if (slot.deadline < next_check_) {
          timer_.notify_all();
        }
        buffer = slot.buffer.get();
        sends = slot.sends;
      }
    }
    if (buffer == nullptr) {  // taken back with the first failure
      withdraw();
      return closed_outcome(error);
    }
    // Without a timeout: when Gloo's own passes, the waiting thread closes all pairs, which is not
    // safe while Gloo's thread starts something (see close()). watch_deadlines() does it instead.
    bool done = false;
    std::string failure;
    try {
      done = sends ? buffer->waitSend(nullptr, kNoTimeout) : buffer->waitRecv(nullptr, kNoTimeout);
    } catch (const std::exception& exception) {
      failure = exception.what();
    }
    if (done) {
      release(message);
      return GRADWIRE_PLUGIN_DONE;
    }
    {
      std::lock_guard lock(mutex_);
      const Slot& slot = slots_[message];
      if (!closed_ && lost_peer_ < 0 && (slot.late || !failure.empty())) {
        lost_peer_ = slot.peer;
        lost_why_ = failure;
        silent_ = slot.late;
      }
    }
    release(message);
    withdraw();
    return closed_outcome(error);
  }

  /// Once no call is under way: returns when each peer has received what it was sent, has left or
  /// has died, and otherwise after as long as a peer may be silent, a minute at most.
  void leave() {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        return;
      }
    }
    try {
      farewells_->say(patience_);
    } catch (const std::exception&) {
      // No memory or thread for it: the peers see the connections end.
    }
  }

  /// Peers learn of it from their connections, which carry no reason.
  void close(const char* = nullptr) {
    {
      std::unique_lock lock(mutex_);
      if (closed_) {
        return;
      }
      closed_ = true;
      queue_.clear();
      for (Slot& slot : slots_) {
        if (slot.buffer) {
          abort_wait(*slot.buffer, slot.sends);
        }
      }
      farewells_->abort();
      // Closing a pair holds it and waits for Gloo's thread, which must not wait for the pair.
      idle_.wait(lock, [this] { return starting_ == nullptr; });
    }
    std::lock_guard lock(closing_);
    context_->close_connections();
  }

  // Closes, then takes back every buffer: destroying one waits until Gloo has let go of it.
  void withdraw() {
    close();
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] {
      return starting_ == nullptr &&
             std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.busy; });
    });
    std::vector<Slot> slots(slots_.size());
    slots.swap(slots_);
    lock.unlock();
    slots.clear();
    const std::lock_guard until_closed(closing_);
  }

 private:
  struct Queued {
    gloo::transport::UnboundBuffer* buffer = nullptr;
    bool sends = false;
    int peer = 0;
    uint64_t tag = 0;
  };

  // On Gloo's thread.
  void start_queued() {
    std::unique_lock lock(mutex_);
    while (!queue_.empty()) {
      const Queued next = queue_.front();
      queue_.pop_front();
      starting_ = next.buffer;
      lock.unlock();
      std::string failure;
      try {
        next.sends ? next.buffer->send(next.peer, next.tag)
                   : next.buffer->recv(next.peer, next.tag);
      } catch (const std::exception& exception) {
        failure = exception.what();
      }
      lock.lock();
      if (!failure.empty()) {
        if (lost_peer_ < 0) {
          lost_peer_ = next.peer;
          lost_why_ = failure;
        }
        abort_wait(*next.buffer, next.sends);  // whoever waits for it closes the engine
      }
      starting_ = nullptr;
      idle_.notify_all();
    }
  }

  static void abort_wait(gloo::transport::UnboundBuffer& buffer, bool sends) {
    sends ? buffer.abortWaitSend() : buffer.abortWaitRecv();
  }

  /// The connection to a peer has ended without a farewell.
  void lose(int peer, const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        return;
      }
      lost_peer_ = peer;
      lost_why_ = why;
    }
    try {
      close();
    } catch (const std::exception&) {
      // The waits are woken already; pairs that fail to close end with the context.
    }
  }

  /// What to answer when the engine is closed: names the peer whose loss closed it.
  int closed_outcome(gradwire_plugin_error* error) {
    std::lock_guard lock(mutex_);
    if (lost_peer_ < 0) {
      return GRADWIRE_PLUGIN_CLOSED;
    }
    error->peer = lost_peer_;
    write_error(error, lost_why_.c_str());
    return silent_ ? GRADWIRE_PLUGIN_TIMED_OUT : GRADWIRE_PLUGIN_FAILED;
  }

  /// Wakes those whose deadline has passed; they name the peer and close the engine.
  void watch_deadlines() {
    using Clock = std::chrono::steady_clock;
    std::unique_lock lock(mutex_);
    while (!stop_) {
      const auto now = Clock::now();
      next_check_ = now + std::chrono::hours(1);
      for (Slot& slot : slots_) {
        if (slot.buffer && slot.busy && !slot.late) {
          if (slot.deadline <= now) {
            slot.late = true;
            abort_wait(*slot.buffer, slot.sends);
          } else {
            next_check_ = std::min(next_check_, slot.deadline);
          }
        }
      }
      timer_.wait_until(lock, next_check_);
    }
  }

  /// The place of a new message.
  uint64_t keep(std::unique_ptr<gloo::transport::UnboundBuffer> buffer, bool sends, int peer) {
    size_t index = slots_.size();
    if (free_.empty()) {
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    slots_[index] = {std::move(buffer), sends, peer, false, {}, false};
    return index;
  }

  void release(uint64_t message) {
    std::unique_ptr<gloo::transport::UnboundBuffer> finished;
    {
      std::unique_lock lock(mutex_);
      if (message >= slots_.size() || !slots_[message].buffer) {
        return;  // taken back with all others
      }
      const auto* const buffer = slots_[message].buffer.get();
      idle_.wait(lock, [this, buffer] { return starting_ != buffer; });
      finished = std::move(slots_[message].buffer);
      slots_[message].busy = false;
      free_.push_back(message);
      idle_.notify_all();
    }
    // Destroyed here, outside the lock: that waits until Gloo's thread has let go.
  }

  const milliseconds patience_;
  std::shared_ptr<ConnectedContext> context_;
  std::mutex mutex_;
  std::mutex closing_;
  std::condition_variable idle_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> free_;  // places in it
  bool closed_ = false;
  int lost_peer_ = -1;
  std::string lost_why_;
  bool silent_ = false;
  bool stop_ = false;
  std::condition_variable timer_;
  std::thread timer_thread_;
  std::chrono::steady_clock::time_point next_check_ = std::chrono::steady_clock::time_point::max();
  std::deque<Queued> queue_;
  gloo::transport::UnboundBuffer* starting_ = nullptr;  // by Gloo's thread, now
  std::unique_ptr<Doorbell> doorbell_;
  std::unique_ptr<Farewells> farewells_;  // last: its threads use the others
};
