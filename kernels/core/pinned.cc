#include "gradwire/kernels/core/pinned.h"

#include <utility>

namespace gradwire {

PinnedBuffer::PinnedBuffer(size_t bytes)
    : data_(bytes == 0 ? nullptr : cuda::allocate_pinned(bytes)), bytes_(bytes) {}

PinnedBuffer::~PinnedBuffer() { cuda::deallocate_pinned(data_); }

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  PinnedBuffer taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

}  // namespace gradwire
