#pragma once
// Host memory that a GPU reads and writes while the host goes on.

#include <cstddef>
#include <span>

namespace gradwire {

/// Host memory that kernels and copies of any GPU reach while the host goes on, where copies into
/// other memory make it wait. Zeroed; the GPU's work on it is over before the destruction.
/// Move-only.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// @throws DeviceError where there is no GPU or no CUDA in this build.
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  std::span<std::byte> bytes() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

namespace cuda {
// In a build without CUDA the first throws DeviceError (no_cuda.cc).
std::byte* allocate_pinned(size_t bytes);
void deallocate_pinned(std::byte* data) noexcept;
}  // namespace cuda

}  // namespace gradwire
