#include "gradwire/kernels/core/pinned.h"

namespace gradwire {

PinnedBuffer::PinnedBuffer(size_t bytes)
    : data_(bytes == 0 ? nullptr : cuda::allocate_pinned(bytes)), bytes_(bytes) {}

PinnedBuffer::~PinnedBuffer() { cuda::deallocate_pinned(data_); }

}  // namespace gradwire
