#include "gradwire/kernels/core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

namespace gradwire {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector register
constexpr size_t kHugePage = size_t{2} << 20;
// Large buffers begin at different places of their huge pages, none at its beginning, where callers'
// own arrays often are. Element i of a gradient, a value and two moments would else lie in the same
// sets of every cache and the same banks of memory, which a loop over all of them waits for. An odd
// number of cache lines, so that all of these places differ within a page, too.
constexpr size_t kColor = 81 * kAlignment;
constexpr size_t kColors = 63;
static_assert(kColor * kColors < kHugePage, "free_cpu() finds the page that was allocated");
constexpr size_t kFirstBlock = size_t{64} << 10;
constexpr size_t kCopyChunk = size_t{1} << 20;

size_t next_color() {
  static std::atomic<size_t> made{0};
  return 1 + made.fetch_add(1, std::memory_order_relaxed) % kColors;
}

[[noreturn]] void throw_no_memory(std::string_view call, size_t bytes) {
  throw DeviceError(concat("buffer: ", call, " of ", bytes, " bytes failed, out of memory"));
}

// AddressSanitizer guards what its allocator gives. GCC and Clang say each in its way that it is there.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMapsLarge = false;
#elif defined(__has_feature)
constexpr bool kMapsLarge = !__has_feature(address_sanitizer);
#else
constexpr bool kMapsLarge = true;
#endif

constexpr size_t up_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Pages of the kernel's own, zero and without memory behind them until they are touched: what a plan
// makes room for and a job never uses costs nothing. From the beginning of a huge page on; `begin` bytes
// of it come before those that were asked for.
std::byte* map_pages(size_t begin, size_t bytes) {
  const size_t length = up_to(begin + bytes, kHugePage), room = length + kHugePage;
  void* const mapped =
      mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw_no_memory("mmap", bytes);
  }
  auto* const first = static_cast<std::byte*>(mapped);
  const size_t before = up_to(reinterpret_cast<uintptr_t>(first), kHugePage) -
                        reinterpret_cast<uintptr_t>(first);
  if (before > 0) {
    (void)munmap(first, before);
  }
  (void)munmap(first + before + length, room - before - length);
  return first + before;
}

std::byte* allocate_pages(size_t begin, size_t bytes) {
  if (kMapsLarge) {
    return map_pages(begin, bytes);
  }
  void* data = nullptr;
  if (posix_memalign(&data, kHugePage, begin + bytes) != 0) {
    throw_no_memory("posix_memalign", bytes);
  }
  std::memset(data, 0, begin + bytes);
  return static_cast<std::byte*>(data);
}

std::byte* allocate_cpu(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 2 - kHugePage) {
    throw_no_memory("mmap", bytes);
  }
  if (bytes < kHugePage) {
    void* data = nullptr;
    if (posix_memalign(&data, kAlignment, bytes) != 0) {
      throw_no_memory("posix_memalign", bytes);
    }
    std::memset(data, 0, bytes);
    return static_cast<std::byte*>(data);
  }
  const size_t begin = next_color() * kColor;
  std::byte* const data = allocate_pages(begin, bytes);
  // Only advice: kernels without huge pages refuse it, and nothing depends on it.
  (void)madvise(data, (begin + bytes) / kHugePage * kHugePage, MADV_HUGEPAGE);
  return data + begin;
}

/// All pages that a large buffer has.
std::span<std::byte> pages_of(std::byte* first, size_t bytes) {
  // It begins within the huge page that was allocated.
  const size_t begin = reinterpret_cast<uintptr_t>(first) % kHugePage;
  return {first - begin, up_to(begin + bytes, kHugePage)};
}

void free_cpu(std::byte* first, size_t bytes) {
  if (bytes < kHugePage) {
    std::free(first);
    return;
  }
  const std::span<std::byte> pages = pages_of(first, bytes);
  if (kMapsLarge) {
    (void)munmap(pages.data(), pages.size());
  } else {
    std::free(pages.data());
  }
}

size_t aligned(size_t bytes) {
  check(bytes <= std::numeric_limits<size_t>::max() / 4, "workspace: asked for ", bytes,
        " bytes, more than any machine has");
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Buffer::Buffer(size_t bytes, Device device) : bytes_(bytes), device_(device) {
  if (bytes == 0) {
    return;
  }
  data_ =
      device.type == DeviceType::kCuda ? cuda::allocate(bytes, device.index) : allocate_cpu(bytes);
}

Buffer::Buffer(size_t bytes, Stream& stream) : bytes_(bytes), device_(stream.device()) {
  if (bytes == 0) {
    return;
  }
  if (device_.type == DeviceType::kCuda) {
    native_stream_ = stream.native_handle();
    data_ = cuda::allocate_in_order(bytes, device_.index, native_stream_);
  } else {
    data_ = allocate_cpu(bytes);
  }
}

Buffer::~Buffer() {
  if (device_.type == DeviceType::kCuda && native_stream_ != nullptr) {
    cuda::deallocate_in_order(data_, device_.index, native_stream_);
  } else if (device_.type == DeviceType::kCuda) {
    cuda::deallocate(data_, device_.index);
  } else {
    free_cpu(data_, bytes_);
  }
}

void Buffer::release_pages() const {
  if (kMapsLarge && device_.type == DeviceType::kCpu && bytes_ >= kHugePage) {
    const std::span<std::byte> pages = pages_of(data_, bytes_);
    (void)madvise(pages.data(), pages.size(), MADV_DONTNEED);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(std::exchange(other.device_, Device{})),
      native_stream_(std::exchange(other.native_stream_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  std::swap(device_, taken.device_);
  std::swap(native_stream_, taken.native_stream_);
  return *this;
}

size_t Workspace::capacity_bytes() const {
  size_t total = 0;
  for (const Buffer& block : blocks_) {
    total += block.size_bytes();
  }
  return total;
}

Buffer Workspace::make_block(size_t bytes) const {
  return stream_ != nullptr ? Buffer(bytes, *stream_) : Buffer(bytes, device_);
}

std::byte* Workspace::take_bytes(size_t bytes) {
  bytes = aligned(bytes);
  if (block_ == 0 && used_ == 0 && blocks_.size() > 1) {
    // Nothing is in use: one block as large as all of them serves the next round alone.
    const size_t total = capacity_bytes();
    blocks_.clear();
    blocks_.push_back(make_block(total));
  }
  if (blocks_.empty() || bytes > blocks_[block_].size_bytes() - used_) {
    // Blocks after the current one are free. The first that fits is next; else a new one is.
    const size_t first = blocks_.empty() ? 0 : block_ + 1;
    size_t next = first;
    while (next < blocks_.size() && blocks_[next].size_bytes() < bytes) {
      ++next;
    }
    if (next == blocks_.size()) {
      blocks_.push_back(make_block(std::max({bytes, capacity_bytes(), kFirstBlock})));
    }
    std::swap(blocks_[first], blocks_[next]);
    block_ = first;
    used_ = 0;
  }
  std::byte* data = blocks_[block_].data() + used_;
  used_ += bytes;
  return data;
}

void Workspace::release(size_t block, size_t used) {
  block_ = block;
  used_ = used;
}

void copy_bytes(std::span<std::byte> destination, Device destination_device,
                std::span<const std::byte> source, Device source_device, Stream& stream) {
  check(destination.size() == source.size(), "copy_bytes: destination has ", destination.size(),
        " bytes, must have the source's ", source.size());
  if (stream.device().type == DeviceType::kCuda) {
    cuda::copy(destination.data(), source.data(), source.size(), stream.device().index,
               stream.native_handle());
    return;
  }
  check(destination_device.type == DeviceType::kCpu && source_device.type == DeviceType::kCpu,
        "copy_bytes: the stream is a CPU stream, must be a CUDA stream to reach GPU memory");
  stream.enqueue([destination, source, &stream] {
    const size_t chunks = (source.size() + kCopyChunk - 1) / kCopyChunk;
    stream.pool().parallel_for(chunks, [&](size_t i) {
      const size_t begin = i * kCopyChunk;
      const size_t bytes = std::min(kCopyChunk, source.size() - begin);
      std::memcpy(destination.data() + begin, source.data() + begin, bytes);
    });
  });
}

}  // namespace gradwire
