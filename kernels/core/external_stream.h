#pragma once
// A stream that somebody else owns: a framework's, on which its arrays are written and read.

#include <memory>
#include <string_view>

#include "gradwire/kernels/core/stream.h"

namespace gradwire::cuda {

/// The cudaStream_t `native_handle` of GPU `device_index` as a Stream, which neither waits for it
/// nor destroys it: the owner keeps it until all that is enqueued here has run. nullptr and 1
/// (cudaStreamLegacy) are that GPU's default stream, 2 (cudaStreamPerThread) is, in every call, the
/// calling thread's own default stream. Which GPU a handle belongs to is the caller's to know.
/// @throws DeviceError where there is no GPU or no CUDA in this build, InvalidArgument for an index
/// that is out of range.
std::unique_ptr<Stream> wrap_stream(void* native_handle, int device_index);

/// @throws what wrap_stream() does for a GPU that cannot be used; `what` begins the message.
void check_device(std::string_view what, int device_index);

/// Blocks the host until all that any stream of that GPU was given has run: what memory in stream
/// order (allocate_in_order()) needs before deallocate(), which waits for none of it there.
void wait_for_device(int device_index);

}  // namespace gradwire::cuda
