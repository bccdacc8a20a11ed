#pragma once
// Ctrl-C while a call waits for other ranks: Python would look at signals when the call returns,
// which may be at a deadline of minutes.

#include <functional>
#include <memory>
#include <utility>

#include "gradwire/comm/transport.h"

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

/// What make() returns, from a thread of its own where expects_interrupts(): then Ctrl-C leaves it
/// behind, to its own deadline. With the GIL. @throws KeyboardInterrupt, and what make() throws.
std::unique_ptr<Transport> made_interruptibly(std::function<std::unique_ptr<Transport>()> make);

}  // namespace gradwire::bindings
