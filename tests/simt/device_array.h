#pragma once
// Memory that kernels reach and the host does not, with a copy on the host that tests write and
// read. The emulator keeps both apart too, so that a test which mixes them up fails there.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <vector>

namespace gradwire::testing {

#if defined(GRADWIRE_ON_GPU)

// gpu_main.cc
void* allocate_on_device(size_t bytes);
void deallocate_on_device(void* data) noexcept;
void copy_to_device(void* to, const void* from, size_t bytes);
void copy_to_host(void* to, const void* from, size_t bytes);

#else

/// How often memory was taken from the emulated device, but in stream order.
inline std::atomic<uint64_t>& device_allocations() {
  static std::atomic<uint64_t> count{0};
  return count;
}

inline void* allocate_on_device(size_t bytes) {
  ++device_allocations();
  void* const data = std::malloc(bytes);
  return data != nullptr ? data : throw std::bad_alloc();
}
inline void deallocate_on_device(void* data) noexcept { std::free(data); }
inline void copy_to_device(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
inline void copy_to_host(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

/// Of all arrays: what the host wrote goes to the device before a launch, and what the host has is
/// old behind it.
class DeviceMirror {
 public:
  static void before_launch() {
    const std::lock_guard lock(mutex());
    for (DeviceMirror* const mirror : all()) {
      mirror->upload();
    }
    ++launches();
  }

 protected:
  DeviceMirror() {
    const std::lock_guard lock(mutex());
    all().insert(this);
  }
  ~DeviceMirror() { deallocate_on_device(device_); }
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;

  /// While the host's copy is still there.
  void forget() {
    const std::lock_guard lock(mutex());
    all().erase(this);
  }

  virtual void* host_memory() = 0;
  virtual size_t host_bytes() const = 0;

  /// The device's memory, with what the host wrote.
  void* lend() {
    const std::lock_guard lock(mutex());
    if (bytes_ < host_bytes()) {
      deallocate_on_device(device_);
      bytes_ = host_bytes();
      device_ = allocate_on_device(bytes_);
      written_ = true;
    }
    upload();
    return device_;
  }
  /// Before the host reads or, as `writes` says, may write.
  void refresh(bool writes) {
    const std::lock_guard lock(mutex());
    if (device_ != nullptr && !written_ && seen_ != launches()) {
      copy_to_host(host_memory(), device_, host_bytes());
    }
    seen_ = launches();
    written_ = written_ || writes;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex it;
    return it;
  }
  static std::set<DeviceMirror*>& all() {
    static std::set<DeviceMirror*> mirrors;
    return mirrors;
  }
  static uint64_t& launches() {
    static uint64_t count = 0;
    return count;
  }
  void upload() {
    if (device_ != nullptr && written_) {
      copy_to_device(device_, host_memory(), host_bytes());
      written_ = false;
      seen_ = launches();
    }
  }

  void* device_ = nullptr;
  size_t bytes_ = 0;
  bool written_ = false;  // by the host, since the last upload
  uint64_t seen_ = 0;     // launches before what the host has
};

/// Elements in device memory: inputs, tables of pointers, workspaces. data(), and so a span of it,
/// is the device's; everything else is the host's. Reads are not checked for a wait().
template <class T>
class DeviceArray {
  using Host = std::vector<T>;

 public:
  using value_type = T;
  using iterator = typename Host::iterator;
  using const_iterator = typename Host::const_iterator;

  DeviceArray() : DeviceArray(Host()) {}
  explicit DeviceArray(size_t count, T value = {}) : DeviceArray(Host(count, value)) {}
  DeviceArray(std::initializer_list<T> values) : DeviceArray(Host(values)) {}
  template <std::input_iterator I>
  DeviceArray(I begin, I end) : DeviceArray(Host(begin, end)) {}
  DeviceArray(const DeviceArray& other) : DeviceArray(other.read()) {}
  DeviceArray(DeviceArray&&) noexcept = default;
  DeviceArray& operator=(DeviceArray other) {
    state_ = std::move(other.state_);
    return *this;
  }
  ~DeviceArray() = default;

  T* data() { return static_cast<T*>(state_->lend()); }
  const T* data() const { return static_cast<const T*>(state_->lend()); }

  size_t size() const { return state_->host.size(); }
  T* host() { return write().data(); }
  const T* host() const { return read().data(); }
  iterator begin() { return write().begin(); }
  iterator end() { return write().end(); }
  const_iterator begin() const { return read().begin(); }
  const_iterator end() const { return read().end(); }
  T& operator[](size_t i) { return write()[i]; }
  const T& operator[](size_t i) const { return read()[i]; }
  void push_back(T value) { write().push_back(value); }
  const Host& read() const {
    state_->refresh(false);
    return state_->host;
  }
  bool operator==(const DeviceArray& other) const { return read() == other.read(); }
  bool operator==(const Host& other) const { return read() == other; }

 private:
  struct State final : DeviceMirror {
    explicit State(Host values) : host(std::move(values)) {}
    ~State() { forget(); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    void* host_memory() override { return host.data(); }
    size_t host_bytes() const override { return host.size() * sizeof(T); }
    using DeviceMirror::lend;
    using DeviceMirror::refresh;
    Host host;
  };

  explicit DeviceArray(Host values) : state_(std::make_unique<State>(std::move(values))) {}
  Host& write() {
    state_->refresh(true);
    return state_->host;
  }

  std::unique_ptr<State> state_;
};

}  // namespace gradwire::testing
