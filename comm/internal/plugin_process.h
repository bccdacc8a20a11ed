#pragma once
// What plug-ins need of their process: a way to report, and peace from SIGPIPE. Part of the
// plug-ins; not installed as an interface.

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <stdexcept>

#include "gradwire/comm/transport/plugin_abi.h"

/// The caller can mend it: becomes GRADWIRE_PLUGIN_INVALID.
class InvalidOptions : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void write_error(gradwire_plugin_error* error, const char* text) {
  std::snprintf(error->text, sizeof(error->text), "%s", text);
}

/// Engines write to sockets without MSG_NOSIGNAL: a dead peer would end this process by SIGPIPE.
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
