#pragma once
// The engine behind the Gloo plug-in's C interface: posted messages, who waits for them until when,
// and the end of it all. Part of gloo_plugin.cc; not installed as an interface.

#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/comm/internal/gloo_plugin_doorbell.h"
#include "gradwire/comm/internal/gloo_plugin_store.h"
#include "gradwire/comm/internal/plugin_process.h"

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

// Tags of messages stay below it.
constexpr uint64_t kFarewellTag = ~uint64_t{0};
constexpr milliseconds kNoTimeout{int64_t{1} << 40};  // 35 years
constexpr milliseconds kFarewellTimeout{1000};

/// Closing from any thread wakes all waits; the context is not used after it, only destroyed.
struct gradwire_plugin_engine {
  static constexpr const char* kTransport = "gloo";

  explicit gradwire_plugin_engine(const gradwire_plugin_options& options) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = options.address;  // by an interface's name Gloo would take its first one
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    const auto context =
        std::make_shared<gloo::rendezvous::Context>(options.rank, options.world_size);
    // Gloo waits five times this long for a connection.
    context->setTimeout(milliseconds(std::max<int64_t>(options.connect_timeout_ms / 5, 50)));
    CallbackStore store(options.store);
    context->connectFullMesh(store, device);
    context_ = context;
    doorbell_ =
        std::make_unique<Doorbell>(std::static_pointer_cast<gloo::transport::tcp::Device>(device),
                                   [this] { start_queued(); });
    watch_peers(options.rank, options.world_size);
    timer_thread_ = std::thread([this] { watch_deadlines(); });
  }

  ~gradwire_plugin_engine() {
    say_farewell();
    withdraw();
    for (Watch& watch : watches_) {
      watch.thread.join();
    }
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
      for (Watch& watch : watches_) {
        watch.buffer->abortWaitRecv();
      }
      // Closing a pair holds it and waits for Gloo's thread, which must not wait for the pair.
      idle_.wait(lock, [this] { return starting_ == nullptr; });
    }
    std::lock_guard lock(closing_);
    context_->closeConnections();
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

  /// A receive that only the peer's farewell or the end of its connection completes. Gloo can lose
  /// the completion of a send to a rank that dies; it does not lose that of a receive long posted.
  struct Watch {
    int peer = 0;
    char farewell = 0;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    std::thread thread;
    bool over = false;  // the peer has left or died
    // Our farewell to the peer; none for one that has gone before.
    char last_word = 0;
    bool told = false;
    std::unique_ptr<gloo::transport::UnboundBuffer> goodbye;
  };

  void watch_peers(int rank, int world_size) {
    for (int peer = 0; peer < world_size; ++peer) {
      if (peer != rank) {
        Watch& watch = watches_.emplace_back();
        watch.peer = peer;
        watch.buffer = context_->createUnboundBuffer(&watch.farewell, 1);
        watch.buffer->recv(peer, kFarewellTag);
      }
    }
    for (Watch& watch : watches_) {
      watch.thread = std::thread([this, &watch] { await_farewell(watch); });
    }
  }

  void await_farewell(Watch& watch) {
    const WithoutPipeSignal quiet;
    std::string lost;
    try {
      watch.buffer->waitRecv(nullptr, kNoTimeout);  // left in peace, or this engine was closed
    } catch (const std::exception& exception) {
      lost = exception.what();
    }
    {
      std::lock_guard lock(mutex_);
      watch.over = true;
      if (watch.goodbye) {
        watch.goodbye->abortWaitSend();  // Gloo can lose its completion, and nobody hears it
      }
      // Who is leaving has nothing more to hear, and others must still get its farewell.
      if (lost.empty() || closed_ || leaving_) {
        return;
      }
      lost_peer_ = watch.peer;
      lost_why_ = lost;
    }
    try {
      close();
    } catch (const std::exception&) {
      // The waits are woken already; pairs that fail to close end with the context.
    }
  }

  // Peers must not take the end of this engine for a death while they still talk to others. Each is
  // told, whatever has become of the connections to the rest.
  void say_farewell() {
    {
      std::lock_guard lock(mutex_);
      if (closed_) {
        return;
      }
      leaving_ = true;
      for (Watch& watch : watches_) {
        if (!watch.over) {
          watch.goodbye = context_->createUnboundBuffer(&watch.last_word, 1);
        }
      }
    }
    for (Watch& watch : watches_) {
      watch.told = watch.goodbye && reached([&] { watch.goodbye->send(watch.peer, kFarewellTag); });
    }
    for (const Watch& watch : watches_) {
      if (watch.told) {
        reached([&] { watch.goodbye->waitSend(nullptr, kFarewellTimeout); });
      }
    }
  }

  /// False when the peer has left in the meantime.
  template <class F>
  static bool reached(const F& call) {
    try {
      call();
      return true;
    } catch (const std::exception&) {
      return false;
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

  std::shared_ptr<gloo::Context> context_;
  std::mutex mutex_;
  std::mutex closing_;
  std::condition_variable idle_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> free_;  // places in it
  std::deque<Watch> watches_;  // their places must not move
  bool closed_ = false;
  bool leaving_ = false;
  int lost_peer_ = -1;
  std::string lost_why_;
  bool silent_ = false;
  bool stop_ = false;
  std::condition_variable timer_;
  std::thread timer_thread_;
  std::chrono::steady_clock::time_point next_check_ = std::chrono::steady_clock::time_point::max();
  std::deque<Queued> queue_;
  gloo::transport::UnboundBuffer* starting_ = nullptr;  // by Gloo's thread, now
  std::unique_ptr<Doorbell> doorbell_;                  // last: its thread uses the others
};
