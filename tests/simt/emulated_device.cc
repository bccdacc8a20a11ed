// The one GPU that the emulator is, in place of the library's: its memory is the host's.

#include <cstdlib>
#include <cstring>
#include <new>

#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/pinned.h"
#include "tests/simt/device.h"

namespace gradwire::cuda {

int device_count() { return 1; }

std::string unavailable_reason() { return ""; }

std::unique_ptr<Stream> make_stream(int) { return std::make_unique<testing::TestStream>(); }

std::byte* allocate(size_t bytes, int) {
  auto* const data = static_cast<std::byte*>(std::calloc(1, bytes));
  return data != nullptr ? data : throw std::bad_alloc();
}

void deallocate(std::byte* data, int) noexcept { std::free(data); }

std::byte* allocate_in_order(size_t bytes, int, void*) { return allocate(bytes, 0); }

void deallocate_in_order(std::byte* data, void*) noexcept { std::free(data); }

std::byte* allocate_pinned(size_t bytes) { return allocate(bytes, 0); }

void deallocate_pinned(std::byte* data) noexcept { std::free(data); }

void copy(std::byte* destination, const std::byte* source, size_t bytes, void*) {
  if (bytes > 0) {
    std::memcpy(destination, source, bytes);
  }
}

}  // namespace gradwire::cuda
