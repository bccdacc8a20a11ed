#pragma once
// Copies to a GPU that the host does not wait for.

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>

#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/pinned.h"

namespace gradwire {

/// Pinned memory for two copies on their way: the source of copy() may change at once, and only a
/// third copy waits for the first. Ends once the GPU has read it.
class StagedUpload {
 public:
  /// Copies of `bytes` bytes at the most. @throws DeviceError as PinnedBuffer does.
  StagedUpload(size_t bytes, Device device) {
    for (Slot& slot : slots_) {
      slot = {PinnedBuffer(bytes), make_event(device)};
    }
  }
  ~StagedUpload() {
    for (const Slot& slot : slots_) {
      try {
        slot.read->wait();
      } catch (const DeviceError&) {  // sticky: nothing runs any more, and later calls say so
      }
    }
  }
  StagedUpload(const StagedUpload&) = delete;
  StagedUpload& operator=(const StagedUpload&) = delete;

  /// Enqueues it; the stream is not captured.
  void copy(const Buffer& to, std::span<const std::byte> source, Stream& stream) {
    Slot& slot = slots_[next_];
    next_ = 1 - next_;
    slot.read->wait();
    const std::span<std::byte> staged = slot.memory.bytes().first(source.size());
    std::ranges::copy(source, staged.begin());
    copy_bytes(to.bytes(), to.device(), staged, {}, stream);
    slot.read->record(stream);
  }

 private:
  struct Slot {
    PinnedBuffer memory;
    std::unique_ptr<Event> read;  // passed once the copy from here is made
  };
  std::array<Slot, 2> slots_;
  size_t next_ = 0;
};

}  // namespace gradwire
