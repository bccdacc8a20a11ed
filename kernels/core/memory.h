#pragma once
// Buffer owns memory; Workspace is a stream's scratch arena; Context is what every operation takes.

#include <cstddef>
#include <span>
#include <vector>

#include "gradwire/kernels/core/stream.h"

namespace gradwire {

/// Owns zeroed, 64-byte aligned memory on one device (CPU: from 2 MiB on it asks for huge pages, each
/// buffer at another place in its first; CUDA: 256-byte aligned). Move-only.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes, Device device = {});
  /// Memory in stream order: for the work enqueued on `stream` from now on, given back behind the
  /// work enqueued before the destruction, without waiting. The stream outlives the buffer. On the
  /// CPU it is a buffer like any other.
  Buffer(size_t bytes, Stream& stream);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  /// A large buffer of the CPU becomes zeros that take no memory until they are written. Any other
  /// keeps its bytes.
  void release_pages() const;

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return bytes_; }
  Device device() const { return device_; }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_{};
  void* native_stream_ = nullptr;  // of memory in stream order on a GPU
};

/// Grow-only scratch memory of one stream. Take memory inside a Frame; a frame's end gives it back.
/// A loop allocates in its first step, at most once more in its second (blocks become one), then
/// never again. Used by one task at a time. A captured CUDA graph keeps the addresses it was captured
/// with: its workspace must serve nothing larger afterwards.
class Workspace {
 public:
  explicit Workspace(Device device = {}) : device_(device) {}
  /// In stream order: growing does not wait either. The stream outlives the workspace.
  explicit Workspace(Stream& stream) : device_(stream.device()), stream_(&stream) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  class Frame {
   public:
    explicit Frame(Workspace& workspace)
        : workspace_(workspace), block_(workspace.block_), used_(workspace.used_) {}
    ~Frame() { workspace_.release(block_, used_); }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

    /// `count` uninitialised elements, 64-byte aligned, valid until the frame ends.
    template <class T>
    std::span<T> take(size_t count) {
      return {reinterpret_cast<T*>(workspace_.take_bytes(count * sizeof(T))), count};
    }

   private:
    Workspace& workspace_;
    size_t block_;
    size_t used_;
  };

  Device device() const { return device_; }
  size_t capacity_bytes() const;

 private:
  friend class Frame;
  std::byte* take_bytes(size_t bytes);
  void release(size_t block, size_t used);
  Buffer make_block(size_t bytes) const;

  Device device_;
  Stream* stream_ = nullptr;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;  // index of the block in use
  size_t used_ = 0;   // bytes taken from it
};

/// Where an operation runs: it enqueues on `stream` and takes scratch memory from `workspace`.
struct Context {
  Stream& stream;
  Workspace& workspace;
};

/// Enqueues a copy of bytes between any two devices on the stream.
void copy_bytes(std::span<std::byte> destination, Device destination_device,
                std::span<const std::byte> source, Device source_device, Stream& stream);

namespace cuda {
// Memory of one GPU; in a build without CUDA each throws DeviceError (no_cuda.cc).
std::byte* allocate(size_t bytes, int device_index);
void deallocate(std::byte* data, int device_index) noexcept;
std::byte* allocate_in_order(size_t bytes, int device_index, void* native_stream);
void deallocate_in_order(std::byte* data, int device_index, void* native_stream) noexcept;
/// On a stream of GPU `device_index`: the default stream is of the GPU that is current.
void copy(std::byte* destination, const std::byte* source, size_t bytes, int device_index,
          void* native_stream);
}  // namespace cuda

}  // namespace gradwire
