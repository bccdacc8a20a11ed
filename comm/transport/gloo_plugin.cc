// libgradwire_gloo.so: messages between pairs of ranks over Gloo's TCP device. The only file that
// sees Gloo's headers; of Gloo it uses the pairs, their send and receive, and the connecting.

#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/comm/internal/gloo_plugin_doorbell.h"
#include "gradwire/comm/internal/gloo_plugin_process.h"
#include "gradwire/comm/transport/gloo_plugin_abi.h"

namespace {

using std::chrono::milliseconds;

/// A posted message. Its buffer lives until the message has been waited for.
struct Slot {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  bool sends = false;
  bool busy = false;  // some thread waits for it
};

void write_error(gradwire_gloo_error* error, const char* text) {
  std::snprintf(error->text, sizeof(error->text), "%s", text);
}

// Tags of messages stay below it.
constexpr uint64_t kFarewellTag = ~uint64_t{0};
constexpr milliseconds kNoTimeout{int64_t{1} << 40};  // 35 years
constexpr milliseconds kFarewellTimeout{1000};

}  // namespace

/// Closing from any thread wakes all waits; the context is not used after it, only destroyed.
struct gradwire_gloo_engine {
  explicit gradwire_gloo_engine(const gradwire_gloo_options& options) {
    gloo::transport::tcp::attr attributes;
    attributes.iface = options.network_interface;
    attributes.ai_family = AF_INET;
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
  }

  ~gradwire_gloo_engine() {
    say_farewell();
    withdraw();
    for (Watch& watch : watches_) {
      watch.thread.join();
    }
  }

  // Gloo's thread does it: Gloo polls a pair again and again, a core's worth, while another thread
  // holds the pair, be it to write or because the scheduler took that thread's core away.
  int post(bool sends, int peer, uint64_t tag, std::pair<void*, size_t> bytes, uint64_t* message,
           gradwire_gloo_error* error) {
    auto buffer = context_->createUnboundBuffer(bytes.first, bytes.second);
    {
      std::lock_guard lock(mutex_);
      if (!closed_) {
        queue_.push_back({buffer.get(), sends, peer, tag});
        *message = keep(std::move(buffer), sends);
        doorbell_->ring();
        return GRADWIRE_GLOO_DONE;
      }
    }
    withdraw();
    return closed_outcome(error);
  }

  int wait(uint64_t message, int64_t timeout_ms, gradwire_gloo_error* error) {
    gloo::transport::UnboundBuffer* buffer = nullptr;
    bool sends = false;
    {
      std::lock_guard lock(mutex_);
      Slot& slot = slots_[message];
      if (slot.buffer) {
        slot.busy = true;
        buffer = slot.buffer.get();
        sends = slot.sends;
      }
    }
    if (buffer == nullptr) {  // taken back with the first failure
      withdraw();
      return closed_outcome(error);
    }
    const auto deadline = std::chrono::steady_clock::now() + milliseconds(timeout_ms);
    int outcome = GRADWIRE_GLOO_DONE;
    try {
      const milliseconds timeout(std::max<int64_t>(timeout_ms, 0));
      const bool done =
          sends ? buffer->waitSend(nullptr, timeout) : buffer->waitRecv(nullptr, timeout);
      outcome = done ? GRADWIRE_GLOO_DONE : GRADWIRE_GLOO_CLOSED;
    } catch (const std::exception& exception) {
      // Gloo reports a timeout as an error like any other.
      outcome = std::chrono::steady_clock::now() >= deadline ? GRADWIRE_GLOO_TIMED_OUT
                                                             : GRADWIRE_GLOO_FAILED;
      write_error(error, exception.what());
    }
    release(message);
    if (outcome != GRADWIRE_GLOO_DONE) {
      withdraw();
    }
    return outcome == GRADWIRE_GLOO_CLOSED ? closed_outcome(error) : outcome;
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
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
    try {
      watch.buffer->waitRecv(nullptr, kNoTimeout);  // left in peace, or this engine was closed
    } catch (const std::exception& exception) {
      {
        std::lock_guard lock(mutex_);
        if (closed_) {
          return;
        }
        lost_peer_ = watch.peer;
        lost_why_ = exception.what();
      }
      try {
        close();
      } catch (const std::exception&) {
        // The waits are woken already; pairs that fail to close end with the context.
      }
    }
  }

  // Peers must not take the end of this engine for a death while they still talk to others.
  void say_farewell() {
    {
      std::lock_guard lock(mutex_);
      if (closed_) {
        return;
      }
    }
    char farewell = 0;
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers;
    try {
      for (const Watch& watch : watches_) {
        buffers.push_back(context_->createUnboundBuffer(&farewell, 1));
        buffers.back()->send(watch.peer, kFarewellTag);
      }
      for (const auto& buffer : buffers) {
        buffer->waitSend(nullptr, kFarewellTimeout);
      }
    } catch (const std::exception&) {
      // A peer has gone already; those not yet told learn it from the connection.
    }
  }

  /// What to answer when the engine is closed: names the peer whose loss closed it.
  int closed_outcome(gradwire_gloo_error* error) {
    std::lock_guard lock(mutex_);
    if (lost_peer_ < 0) {
      return GRADWIRE_GLOO_CLOSED;
    }
    error->peer = lost_peer_;
    write_error(error, lost_why_.c_str());
    return GRADWIRE_GLOO_FAILED;
  }

  /// The place of a new message.
  uint64_t keep(std::unique_ptr<gloo::transport::UnboundBuffer> buffer, bool sends) {
    size_t index = 0;
    while (index < slots_.size() && slots_[index].buffer) {
      ++index;
    }
    if (index == slots_.size()) {
      slots_.emplace_back();
    }
    slots_[index] = {std::move(buffer), sends, false};
    return index;
  }

  void release(uint64_t message) {
    std::unique_ptr<gloo::transport::UnboundBuffer> finished;
    {
      std::unique_lock lock(mutex_);
      const auto* const buffer = slots_[message].buffer.get();
      idle_.wait(lock, [this, buffer] { return starting_ != buffer; });
      finished = std::move(slots_[message].buffer);
      slots_[message].busy = false;
      idle_.notify_all();
    }
    // Destroyed here, outside the lock: that waits until Gloo's thread has let go.
  }

  std::shared_ptr<gloo::Context> context_;
  std::mutex mutex_;
  std::mutex closing_;
  std::condition_variable idle_;
  std::vector<Slot> slots_;
  std::deque<Watch> watches_;  // their places must not move
  bool closed_ = false;
  int lost_peer_ = -1;
  std::string lost_why_;
  std::deque<Queued> queue_;
  gloo::transport::UnboundBuffer* starting_ = nullptr;  // by Gloo's thread, now
  std::unique_ptr<Doorbell> doorbell_;                  // last: its thread uses the others
};

namespace {

/// Runs `body` so that no exception leaves the plug-in.
template <class F>
int guarded(gradwire_gloo_error* error, F body) {
  try {
    return body();
  } catch (const std::exception& exception) {
    write_error(error, exception.what());
  } catch (...) {
    write_error(error, "an exception of an unknown type");
  }
  return GRADWIRE_GLOO_FAILED;
}

int open_engine(const gradwire_gloo_options* options, gradwire_gloo_engine** engine,
                gradwire_gloo_error* error) {
  const WithoutPipeSignal quiet;  // for the threads started here too
  return guarded(error, [&] {
    *engine = new gradwire_gloo_engine(*options);
    return int{GRADWIRE_GLOO_DONE};
  });
}

int post_send(gradwire_gloo_engine* engine, int peer, uint64_t tag, const void* data, size_t bytes,
              uint64_t* message, gradwire_gloo_error* error) {
  // Gloo has one buffer type for both directions; it only reads from this one.
  void* const source = const_cast<void*>(data);
  return guarded(error,
                 [&] { return engine->post(true, peer, tag, {source, bytes}, message, error); });
}

int post_recv(gradwire_gloo_engine* engine, int peer, uint64_t tag, void* data, size_t bytes,
              uint64_t* message, gradwire_gloo_error* error) {
  return guarded(error,
                 [&] { return engine->post(false, peer, tag, {data, bytes}, message, error); });
}

int wait_for(gradwire_gloo_engine* engine, uint64_t message, int64_t timeout_ms,
             gradwire_gloo_error* error) {
  return guarded(error, [&] { return engine->wait(message, timeout_ms, error); });
}

void close_engine(gradwire_gloo_engine* engine) {
  gradwire_gloo_error ignored{{}, -1};  // pairs that fail to close are closed by the peer or by destroy()
  guarded(&ignored, [&] {
    engine->close();
    return int{GRADWIRE_GLOO_DONE};
  });
}

void destroy_engine(gradwire_gloo_engine* engine) {
  const WithoutPipeSignal quiet;
  delete engine;
}

constexpr gradwire_gloo_table kTable = {GRADWIRE_GLOO_ABI_VERSION,
                                        sizeof(gradwire_gloo_table),
                                        open_engine,
                                        post_send,
                                        post_recv,
                                        wait_for,
                                        close_engine,
                                        destroy_engine};

}  // namespace

extern "C" __attribute__((visibility("default"))) const gradwire_gloo_table* gradwire_gloo_entry(
    uint32_t abi_version) {
  return abi_version == GRADWIRE_GLOO_ABI_VERSION ? &kTable : nullptr;
}
