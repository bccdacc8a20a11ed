#include "bench/trainer/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <system_error>

#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

using gradwire::concat;
using gradwire::InvalidArgument;

constexpr int kGraceMilliseconds = 500;

// Written by the handler: a signal handler can reach nothing but a global.
volatile sig_atomic_t wake_descriptor = -1;

void on_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe already holds a signal, so a failed write loses nothing.
  [[maybe_unused]] const ssize_t written = ::write(wake_descriptor, &byte, 1);
  errno = saved;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void keep_to(const std::vector<int>& cpus) {
  if (cpus.empty()) {
    return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  std::string names;
  for (const int cpu : cpus) {
    CPU_SET(static_cast<size_t>(cpu), &set);
    names += gradwire::concat(names.empty() ? "" : ",", cpu);
  }
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    throw gradwire::InvalidArgument(
        gradwire::concat("--compute-cpus ", names, ": ", std::strerror(errno),
                         ", expected processors that this process may use"));
  }
}

double process_cpu_ms() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

SignalWatch::SignalWatch(std::function<void(std::string_view)> on_stuck)
    : on_stuck_(std::move(on_stuck)) {
  if (::pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw std::system_error(errno, std::generic_category(), "pipe2");
  }
  wake_descriptor = pipe_[1];
  thread_ = std::thread([this] { watch(); });
  handle(SIGTERM, on_signal);
  handle(SIGINT, on_signal);
  handle(SIGPIPE, SIG_IGN);  // a reader that has gone is an error of write()
}

SignalWatch::~SignalWatch() {
  handle(SIGTERM, SIG_DFL);
  handle(SIGINT, SIG_DFL);
  const unsigned char stop = 0;
  [[maybe_unused]] const ssize_t written = ::write(pipe_[1], &stop, 1);
  thread_.join();
  wake_descriptor = -1;
  ::close(pipe_[0]);
  ::close(pipe_[1]);
}

void SignalWatch::watch() {
  while (true) {
    pollfd wake = {pipe_[0], POLLIN, 0};
    const int ready = ::poll(&wake, 1, signal_ == 0 ? -1 : kGraceMilliseconds);
    if (ready == 0) {
      on_stuck_(reason());
      ::_exit(128 + signal_);
    }
    unsigned char byte = 0;
    if (ready < 0 || ::read(pipe_[0], &byte, 1) != 1) {
      continue;
    }
    if (byte == 0) {
      return;
    }
    signal_ = byte;
    const std::lock_guard lock(mutex_);
    for (gradwire::Transport* transport : transports_) {
      transport->abort(reason());
    }
  }
}

void SignalWatch::attach(gradwire::Transport& transport) {
  const std::lock_guard lock(mutex_);
  transports_.push_back(&transport);
  if (signal_ != 0) {
    transport.abort(reason());
  }
}

void SignalWatch::detach(gradwire::Transport& transport) {
  const std::lock_guard lock(mutex_);
  std::erase(transports_, &transport);
}

void SignalWatch::check() const {
  if (signal_ != 0) {
    throw Interrupted(reason());
  }
}

std::string SignalWatch::reason() const {
  return signal_ == SIGINT ? "interrupted by SIGINT" : "stopped by SIGTERM";
}

void die_with_parent(long expected_parent) {
  const pid_t parent = getppid();
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    throw std::system_error(errno, std::generic_category(), "prctl(PR_SET_PDEATHSIG)");
  }
  // A parent that ended before prctl() sends nothing any more.
  if (getppid() != parent || (expected_parent > 1 && parent != expected_parent)) {
    throw Interrupted(concat("the parent has gone: it is ", getppid(), ", expected ",
                             expected_parent > 1 ? expected_parent : parent));
  }
}

uint64_t parse_bytes_sent(std::string_view table, std::string_view interface) {
  constexpr int kSentColumn = 8;  // 0 to 7 are about receiving
  std::istringstream lines{std::string(table)};
  std::string line, known;
  for (int number = 0; std::getline(lines, line); ++number) {
    const size_t colon = line.find(':');
    if (number < 2 || colon == std::string::npos) {
      continue;  // two lines of headings
    }
    const size_t begin = line.find_first_not_of(' ');
    const std::string name = line.substr(begin, colon - begin);
    known += concat(known.empty() ? "" : ", ", name);
    if (name != interface) {
      continue;
    }
    std::istringstream columns(line.substr(colon + 1));
    uint64_t value = 0;
    for (int column = 0; column <= kSentColumn; ++column) {
      columns >> value;
    }
    gradwire::check(!columns.fail(), "interface ", interface, ": line is '", line,
                    "', expected at least ", kSentColumn + 1, " counters");
    return value;
  }
  throw InvalidArgument(concat("interface: unknown name '", interface, "', known: ", known));
}

uint64_t interface_bytes_sent(std::string_view interface) {
  std::ifstream file("/proc/self/net/dev");
  gradwire::check(file.is_open(), "/proc/self/net/dev: cannot be opened, expected Linux's table");
  std::ostringstream table;
  table << file.rdbuf();
  return parse_bytes_sent(table.str(), interface);
}

}  // namespace trainer
