// libgradwire_gloo.so: messages between pairs of ranks over Gloo's TCP device. The only file that
// sees Gloo's headers; of Gloo it uses the pairs, their send and receive, and the connecting.

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "gradwire/comm/transport/gloo_plugin_abi.h"

namespace {

using std::chrono::milliseconds;

/// Gloo's view of the caller's store.
class CallbackStore final : public gloo::rendezvous::Store {
 public:
  explicit CallbackStore(const gradwire_gloo_store& store) : store_(store) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    require(store_.set(store_.self, key.c_str(), data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    std::vector<char> value(1024);
    size_t bytes = 0;
    require(store_.get(store_.self, key.c_str(), value.data(), value.size(), &bytes));
    if (bytes > value.size()) {
      value.resize(bytes);
      require(store_.get(store_.self, key.c_str(), value.data(), value.size(), &bytes));
    }
    value.resize(bytes);
    return value;
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      get(key);
    }
  }
  // The caller's store has a deadline of its own.
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

 private:
  static void require(int outcome) {
    if (outcome != 0) {
      throw std::runtime_error("the store failed");
    }
  }
  gradwire_gloo_store store_;
};

/// A posted message. Its buffer lives until the message has been waited for.
struct Slot {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  bool sends = false;
  bool busy = false;  // some thread is inside a call on it
};

/// Gloo writes to sockets without MSG_NOSIGNAL: a peer that died would end this process by SIGPIPE.
/// Keeps the signal from the calling thread, and from threads it starts, without touching the
/// process's own handling of it.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &previous_);
  }
  ~WithoutPipeSignal() {
    if (!was_pending_) {  // one that came from our writes
      const timespec at_once{0, 0};
      while (sigtimedwait(&pipe_, nullptr, &at_once) == -1 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  WithoutPipeSignal& operator=(const WithoutPipeSignal&) = delete;

 private:
  sigset_t pipe_{}, previous_{};
  bool was_pending_ = false;
};

void write_error(gradwire_gloo_error* error, const char* text) {
  std::snprintf(error->text, sizeof(error->text), "%s", text);
}

}  // namespace

/// Closing from any thread wakes all waits; the context is not used after it, only destroyed.
struct gradwire_gloo_engine {
  explicit gradwire_gloo_engine(const gradwire_gloo_options& options) {
    gloo::transport::tcp::attr attributes;
    attributes.iface = options.network_interface;
    attributes.ai_family = AF_INET;
    device_ = gloo::transport::tcp::CreateDevice(attributes);
    const auto context =
        std::make_shared<gloo::rendezvous::Context>(options.rank, options.world_size);
    // Gloo waits five times this long for a connection.
    context->setTimeout(milliseconds(std::max<int64_t>(options.connect_timeout_ms / 5, 50)));
    CallbackStore store(options.store);
    context->connectFullMesh(store, device_);
    context_ = context;
  }

  int post(bool sends, int peer, uint64_t tag, void* data, size_t bytes, uint64_t* message) {
    gloo::transport::UnboundBuffer* const buffer = add(sends, data, bytes, message);
    if (buffer == nullptr) {
      withdraw();
      return GRADWIRE_GLOO_CLOSED;
    }
    try {
      if (sends) {
        buffer->send(peer, tag);
      } else {
        buffer->recv(peer, tag);
      }
    } catch (const std::exception&) {
      release(*message);
      withdraw();
      throw;
    }
    std::lock_guard lock(mutex_);
    slots_[*message].busy = false;
    idle_.notify_all();
    return GRADWIRE_GLOO_DONE;
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
      return GRADWIRE_GLOO_CLOSED;
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
    return outcome;
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      if (closed_) {
        return;
      }
      closed_ = true;
      for (Slot& slot : slots_) {
        if (slot.buffer && slot.sends) {
          slot.buffer->abortWaitSend();
        } else if (slot.buffer) {
          slot.buffer->abortWaitRecv();
        }
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
      return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.busy; });
    });
    std::vector<Slot> slots(slots_.size());
    slots.swap(slots_);
    lock.unlock();
    slots.clear();
    const std::lock_guard until_closed(closing_);
  }

 private:
  /// A busy slot for a new message; null when the engine is closed.
  gloo::transport::UnboundBuffer* add(bool sends, void* data, size_t bytes, uint64_t* message) {
    auto buffer = context_->createUnboundBuffer(data, bytes);
    std::lock_guard lock(mutex_);
    if (closed_) {
      return nullptr;
    }
    size_t index = 0;
    while (index < slots_.size() && slots_[index].buffer) {
      ++index;
    }
    if (index == slots_.size()) {
      slots_.emplace_back();
    }
    slots_[index] = {std::move(buffer), sends, true};
    *message = index;
    return slots_[index].buffer.get();
  }

  void release(uint64_t message) {
    std::unique_ptr<gloo::transport::UnboundBuffer> finished;
    {
      std::lock_guard lock(mutex_);
      finished = std::move(slots_[message].buffer);
      slots_[message].busy = false;
      idle_.notify_all();
    }
    // Destroyed here, outside the lock: that waits until Gloo's thread has let go.
  }

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::Context> context_;
  std::mutex mutex_;
  std::mutex closing_;
  std::condition_variable idle_;
  std::vector<Slot> slots_;
  bool closed_ = false;
};

namespace {

/// Runs `body` so that no exception leaves the plug-in.
template <class F>
int guarded(gradwire_gloo_error* error, F body) {
  const WithoutPipeSignal quiet;
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
  return guarded(error, [&] {
    *engine = new gradwire_gloo_engine(*options);
    return int{GRADWIRE_GLOO_DONE};
  });
}

int post_send(gradwire_gloo_engine* engine, int peer, uint64_t tag, const void* data, size_t bytes,
              uint64_t* message, gradwire_gloo_error* error) {
  // Gloo has one buffer type for both directions; it only reads from this one.
  void* const source = const_cast<void*>(data);
  return guarded(error, [&] { return engine->post(true, peer, tag, source, bytes, message); });
}

int post_recv(gradwire_gloo_engine* engine, int peer, uint64_t tag, void* data, size_t bytes,
              uint64_t* message, gradwire_gloo_error* error) {
  return guarded(error, [&] { return engine->post(false, peer, tag, data, bytes, message); });
}

int wait_for(gradwire_gloo_engine* engine, uint64_t message, int64_t timeout_ms,
             gradwire_gloo_error* error) {
  return guarded(error, [&] { return engine->wait(message, timeout_ms, error); });
}

void close_engine(gradwire_gloo_engine* engine) {
  gradwire_gloo_error ignored;  // pairs that fail to close are closed by the peer or by destroy()
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
