#pragma once
// What the Gloo plug-in needs of its process: the caller's store as Gloo sees it, and peace from
// SIGPIPE. Part of gloo_plugin.cc; not installed as an interface.

#include <gloo/rendezvous/store.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

#include "gradwire/comm/transport/gloo_plugin_abi.h"

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
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  static void require(int outcome) {
    if (outcome != 0) {
      throw std::runtime_error("the store failed");
    }
  }
  gradwire_gloo_store store_;
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
