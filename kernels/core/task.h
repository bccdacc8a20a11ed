#pragma once
// A move-only callable kept in place: queueing one allocates nothing.

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace gradwire {

/// A `void()` callable of at most kCapacity bytes. Larger captures do not compile: let them point
/// at something the owner of the stream keeps.
class Task {
 public:
  static constexpr size_t kCapacity = 256;

  Task() = default;

  template <class F>
    requires(!std::is_same_v<std::decay_t<F>, Task>)
  Task(F&& f) {  // NOLINT: implicit on purpose, callers pass lambdas
    using Callable = std::decay_t<F>;
    static_assert(sizeof(Callable) <= kCapacity, "the task captures too much");
    static_assert(alignof(Callable) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_move_constructible_v<Callable>);
    new (storage_) Callable(std::forward<F>(f));
    run_ = [](void* p) { (*static_cast<Callable*>(p))(); };
    relocate_ = [](void* from, void* to) {
      auto* source = static_cast<Callable*>(from);
      if (to != nullptr) {
        new (to) Callable(std::move(*source));
      }
      source->~Callable();
    };
  }

  Task(Task&& other) noexcept { take(other); }
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~Task() { reset(); }

  explicit operator bool() const { return run_ != nullptr; }
  void operator()() { run_(storage_); }

 private:
  void reset() {
    if (run_ != nullptr) {
      relocate_(storage_, nullptr);
      run_ = nullptr;
    }
  }
  void take(Task& other) noexcept {
    if (other.run_ != nullptr) {
      other.relocate_(other.storage_, storage_);
      run_ = other.run_;
      relocate_ = other.relocate_;
      other.run_ = nullptr;
    }
  }

  alignas(std::max_align_t) std::byte storage_[kCapacity];
  void (*run_)(void*) = nullptr;
  void (*relocate_)(void*, void*) = nullptr;
};

}  // namespace gradwire
