#include "gradwire/bindings/interruptible.h"

#include <fcntl.h>
#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "gradwire/kernels/core/error.h"

namespace gradwire::bindings {
namespace {

namespace py = pybind11;
using std::chrono::milliseconds;

constexpr milliseconds kGrace{500};  // a call that ends by itself need not be ended
constexpr milliseconds kLook{50};    // at signals, while ranks meet

// What the handler needs, which may do next to nothing: whom to wake, and Python's own handler.
std::atomic<int> wake_up{-1};
std::atomic<void (*)(int)> pythons{nullptr};

void on_interrupt(int number) {
  const int error = errno;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(wake_up, &byte, 1);
  errno = error;
  pythons.load()(number);
}

// What a thread of ours has made. Not a std::future: its templates of our types are exported.
struct Joining {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::unique_ptr<Transport> made;
  std::exception_ptr error;
};

// A thread that the handler wakes, and the transport that it ends then.
class Watcher {
 public:
  // This process's, which never ends: another one after a fork, whose threads stay behind.
  static Watcher& here() {
    static std::mutex mutex;
    static Watcher* watcher = nullptr;
    const std::lock_guard lock(mutex);
    if (watcher == nullptr || watcher->process_ != ::getpid()) {
      watcher = new Watcher();
    }
    return *watcher;
  }

  int pipe() const { return pipe_[1]; }

  void watch(std::shared_ptr<Transport> transport) {
    std::shared_ptr<Transport> before;  // ends without the lock
    {
      const std::lock_guard lock(mutex_);
      before = std::exchange(transport_, std::move(transport));
      ++call_;
    }
    ended_.notify_all();
  }

 private:
  Watcher() {
    check(::pipe2(pipe_, O_CLOEXEC) == 0, "pipe: none is left, expected two file descriptors");
    ::fcntl(pipe_[1], F_SETFL, O_NONBLOCK);  // written to by a signal handler
    std::thread([this] { listen(); }).detach();
  }

  void listen() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    for (char byte = 0;;) {
      if (::read(pipe_[0], &byte, 1) == 1) {
        end_call();
      }
    }
  }

  void end_call() {
    std::unique_lock lock(mutex_);
    const uint64_t call = call_;
    ended_.wait_for(lock, kGrace, [&] { return call_ != call; });
    const std::shared_ptr<Transport> transport = call_ == call ? transport_ : nullptr;
    lock.unlock();
    if (transport) {
      transport->abort("interrupted (Ctrl-C)");
    }
  }

  const pid_t process_ = ::getpid();
  int pipe_[2] = {-1, -1};
  std::mutex mutex_;
  std::condition_variable ended_;
  std::shared_ptr<Transport> transport_;
  uint64_t call_ = 0;
};

}  // namespace

bool expects_interrupts() {
  static thread_local const bool main = ::syscall(SYS_gettid) == ::getpid();
  if (!main) {
    return false;
  }
  static const auto* const signals = new py::module_(py::module_::import("signal"));
  static const auto* const handler = new py::object(signals->attr("default_int_handler"));
  static const auto* const getsignal = new py::object(signals->attr("getsignal"));
  return (*getsignal)(SIGINT).is(*handler);
}

Interruptible::Interruptible() {
  if (!expects_interrupts()) {
    return;
  }
  struct sigaction found {};
  ::sigaction(SIGINT, nullptr, &found);
  if ((found.sa_flags & SA_SIGINFO) != 0 || found.sa_handler == &on_interrupt ||
      found.sa_handler == SIG_IGN || found.sa_handler == SIG_DFL) {
    return;  // an outer call listens, or Python does not
  }
  wake_up = Watcher::here().pipe();
  pythons = found.sa_handler;
  struct sigaction mine = found;
  mine.sa_handler = &on_interrupt;
  ::sigaction(SIGINT, &mine, nullptr);
  listens_ = true;
  if (PyErr_CheckSignals() != 0) {  // of a signal that came before
    stop_listening();
    throw py::error_already_set();
  }
}

Interruptible::~Interruptible() {
  if (listens_) {
    Watcher::here().watch(nullptr);
    stop_listening();
  }
}

void Interruptible::stop_listening() {
  struct sigaction found {};
  ::sigaction(SIGINT, nullptr, &found);
  if (found.sa_handler == &on_interrupt) {  // else a callback of the call has set another
    found.sa_handler = pythons;
    ::sigaction(SIGINT, &found, nullptr);
  }
}

void Interruptible::over(std::shared_ptr<Transport> transport) {
  if (listens_) {
    Watcher::here().watch(std::move(transport));
  }
}

void throw_interrupt() {
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

std::unique_ptr<Transport> made_interruptibly(std::function<std::unique_ptr<Transport>()> make) {
  if (!expects_interrupts()) {
    const py::gil_scoped_release release;
    return make();
  }
  const auto joining = std::make_shared<Joining>();
  std::thread thread([joining, make = std::move(make)] {
    std::unique_ptr<Transport> made;
    std::exception_ptr error;
    try {
      made = make();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(joining->mutex);
    joining->made = std::move(made);
    joining->error = error;
    joining->done = true;
    joining->changed.notify_all();
  });
  for (bool done = false; !done;) {
    {
      const py::gil_scoped_release release;
      std::unique_lock lock(joining->mutex);
      done = joining->changed.wait_for(lock, kLook, [&] { return joining->done; });
    }
    if (!done && PyErr_CheckSignals() != 0) {
      thread.detach();
      throw py::error_already_set();
    }
  }
  {
    const py::gil_scoped_release release;  // what make() holds may end with its thread
    thread.join();
  }
  if (joining->error) {
    std::rethrow_exception(joining->error);
  }
  return std::move(joining->made);
}

}  // namespace gradwire::bindings
