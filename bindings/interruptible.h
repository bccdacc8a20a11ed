#pragma once
// Ctrl-C while a call waits for other ranks: Python would look at signals when the call returns,
// which may be at a deadline of minutes.

#include <functional>
#include <memory>
#include <utility>

#include "gradwire/bindings/one_at_a_time.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/comm/transport.h"
#include "gradwire/kernels/core/of_process.h"

namespace gradwire::bindings {

/// Whether Ctrl-C has to become a KeyboardInterrupt in this thread: in the main one, with Python's
/// own handler for it. With the GIL.
bool expects_interrupts();

/// Lives during a call that may wait, where expects_interrupts(); does nothing elsewhere. Its
/// handler of the signal calls Python's, and is gone with it.
class Interruptible {
 public:
  /// With the GIL. @throws KeyboardInterrupt that is due already.
  Interruptible();
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  /// From now on Ctrl-C ends the transport's group where the call has not returned within half a
  /// second, so that it throws; other ranks are told why. Without the GIL or with it.
  void over(std::shared_ptr<Transport> transport);

 private:
  static void stop_listening();
  bool listens_ = false;
};

/// With the GIL, when a call has thrown. @throws KeyboardInterrupt in its place, if that is why.
void throw_interrupt();

/// call(guard) with an Interruptible. With the GIL.
template <class Call>
auto interruptible(Call&& call) {
  Interruptible guard;
  try {
    return call(guard);
  } catch (...) {
    throw_interrupt();
    throw;
  }
}

/// The calls of a reducer, which wait for the ranks of its transport.
class ReducerCalls {
 public:
  const OfProcess& process() const { return process_; }

  /// Runs body() without the GIL, and not while another thread is in here. Ctrl-C ends a wait for other
  /// ranks, and their group with it. @throws InvalidArgument in a forked process.
  template <class Body>
  auto over(const std::shared_ptr<Transport>& transport, const Body& body) {
    return interruptible([&](Interruptible& guard) {
      return at_once([&] {
        guard.over(transport);
        return body();
      });
    });
  }

  /// The same of what waits for no rank: to listen to Ctrl-C would cost as much again.
  template <class Body>
  auto at_once(const Body& body) {
    process_.check_here("reducer");
    const pybind11::gil_scoped_release release;
    const OneAtATime::Inside inside(door_);
    return body();
  }

 private:
  const OfProcess process_;
  OneAtATime door_;
};

/// What make() returns, from a thread of its own where expects_interrupts(): then Ctrl-C leaves it
/// behind, to its own deadline. With the GIL. @throws KeyboardInterrupt, and what make() throws.
std::unique_ptr<Transport> made_interruptibly(std::function<std::unique_ptr<Transport>()> make);

}  // namespace gradwire::bindings
