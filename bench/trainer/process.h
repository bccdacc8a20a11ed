#pragma once
// What the trainer asks of the operating system: signals, its parent, its network interface.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gradwire/comm/transport.h"

namespace trainer {

/// SIGTERM or SIGINT arrived.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Processor time of all threads of this process so far, in milliseconds.
double process_cpu_ms();

/// Turns SIGTERM and SIGINT into an abort of the attached transports. One per process.
class SignalWatch {
 public:
  /// `on_stuck` runs when the process is still there half a second after a signal; the process then
  /// exits. It covers waits that no transport can end, such as the rendezvous.
  explicit SignalWatch(std::function<void(std::string_view reason)> on_stuck);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  void attach(gradwire::Transport& transport);
  void detach(gradwire::Transport& transport);

  /// @throws Interrupted after a signal.
  void check() const;
  /// 0 while no signal has arrived.
  int signal() const { return signal_.load(); }
  std::string reason() const;

 private:
  void watch();

  std::function<void(std::string_view)> on_stuck_;
  std::atomic<int> signal_ = 0;
  int pipe_[2] = {-1, -1};
  std::mutex mutex_;
  std::vector<gradwire::Transport*> transports_;
  std::thread thread_;
};

/// Has the kernel kill this process when its parent ends. `expected_parent` > 1: the process that
/// must still be the parent. @throws Interrupted when the parent has gone already.
void die_with_parent(long expected_parent);

/// The calling thread computes on these processors from now on, unless there are none. Those it has
/// started, which exchange, keep all of them. @throws gradwire::InvalidArgument naming them when
/// this process may not use them.
void keep_to(const std::vector<int>& cpus);

/// tx_bytes of `interface` in the process's own network namespace (/proc/self/net/dev).
/// @throws gradwire::InvalidArgument listing the interfaces when there is none of that name.
uint64_t interface_bytes_sent(std::string_view interface);

/// Parses the text of /proc/net/dev; `interface_bytes_sent` of a table in memory.
uint64_t parse_bytes_sent(std::string_view table, std::string_view interface);

}  // namespace trainer
