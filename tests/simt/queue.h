#pragma once
// Where launches wait for their turn, when they do not run in the caller.

#include <functional>

#include "tests/simt/emulator.h"

namespace gradwire::simt {

/// Takes a launch for the stream with this native handle, to run it when its turn comes.
using Queue = void (*)(void* native_stream, std::function<void()> work);

/// From now on launches go there; null, as at first: they run in the caller.
void set_queue(Queue queue);

/// A launch on a stream. What can be told of it at once is a KernelFault here.
void enqueue(void* native_stream, const Launch& what, std::function<void()> body);

}  // namespace gradwire::simt
