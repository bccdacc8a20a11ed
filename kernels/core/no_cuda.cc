// Every cuda:: function of a build without CUDA, so that callers hold no #ifdef.

#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/external_stream.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/pinned.h"
#include "gradwire/kernels/core/stream.h"

namespace gradwire::cuda {
namespace {

constexpr const char* kReason = "gradwire was built without CUDA";

[[noreturn]] void throw_unavailable(const char* call) {
  throw DeviceError(concat(call, ": ", kReason, ", configure with GRADWIRE_CUDA=ON"));
}

}  // namespace

int device_count() { return 0; }

std::string unavailable_reason() { return kReason; }

std::unique_ptr<Stream> make_stream(int) { throw_unavailable("cuda::make_stream"); }

std::unique_ptr<Stream> wrap_stream(void*, int) { throw_unavailable("cuda::wrap_stream"); }

void wait_for_device(int) { throw_unavailable("cuda::wait_for_device"); }

void check_device(std::string_view what, int) {
  throw DeviceError(concat(what, ": no GPU: ", kReason));
}

int exchange_device(int) { throw_unavailable("cuda::exchange_device"); }

bool is_capturing(const Stream&) { throw_unavailable("cuda::is_capturing"); }

void exempt_thread_from_captures() { throw_unavailable("cuda::exempt_thread_from_captures"); }

std::unique_ptr<Event> make_event(int) { throw_unavailable("cuda::make_event"); }

std::byte* allocate(size_t, int) { throw_unavailable("cuda::allocate"); }

void deallocate(std::byte*, int) noexcept {}  // nothing was ever allocated

std::byte* allocate_in_order(size_t, int, void*) { throw_unavailable("cuda::allocate_in_order"); }

void deallocate_in_order(std::byte*, int, void*) noexcept {}

void copy(std::byte*, const std::byte*, size_t, int, void*) { throw_unavailable("cuda::copy"); }

std::byte* allocate_pinned(size_t) { throw_unavailable("cuda::allocate_pinned"); }

void deallocate_pinned(std::byte*) noexcept {}

}  // namespace gradwire::cuda
