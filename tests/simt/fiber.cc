#include "tests/simt/fiber.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "tests/simt/race_order.h"

#if defined(GRADWIRE_SIMT_RACES)
extern "C" void AnnotateBenignRaceSized(const char* file, int line, const volatile void* memory,
                                        unsigned long bytes, const char* why);
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace gradwire::simt {
namespace {

namespace context = boost::context::detail;

constexpr size_t kGuardBytes = 4096;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 * 1024;  // instrumented frames are larger

void start_switch(void** save, const void* stack, size_t bytes) {
  __sanitizer_start_switch_fiber(save, stack, bytes);
}
void finish_switch(void* saved, const void** stack, size_t* bytes) {
  __sanitizer_finish_switch_fiber(saved, stack, bytes);
}
// Frames that were abandoned left redzones behind.
void forget_frames(const std::byte* stack) { __asan_unpoison_memory_region(stack, kStackBytes); }
#else
constexpr size_t kStackBytes = 64 * 1024;

void start_switch(void**, const void*, size_t) {}
void finish_switch(void*, const void**, size_t*) {}
void forget_frames(const std::byte*) {}
#endif

constexpr size_t kMappedBytes = kGuardBytes + kStackBytes;

#if defined(GRADWIRE_SIMT_RACES)
/// Stacks of OS threads that have ended: ThreadSanitizer needs long to forget what is unmapped. A
/// stack's next fibers are not ordered behind its last ones, so what is seen there is no race.
class Shelf {
 public:
  static Shelf& instance() {
    static Shelf* const shelf = new Shelf;  // for threads that end after static objects
    return *shelf;
  }
  void put(const std::vector<std::byte*>& stacks) {
    locked([&] { free_.insert(free_.end(), stacks.begin(), stacks.end()); });
  }
  std::byte* take() {
    std::byte* memory = nullptr;
    locked([&] {
      if (!free_.empty()) {
        memory = free_.back();
        free_.pop_back();
      }
    });
    return memory;
  }
  static void mapped(std::byte* memory) {
    AnnotateBenignRaceSized(__FILE__, __LINE__, memory, kMappedBytes, "the stack of a fiber");
  }

 private:
  template <class F>
  void locked(const F& work) {
    const Untracked untracked;
    while (busy_.test_and_set(std::memory_order_acquire)) {  // a mutex would order kernels
    }
    work();
    busy_.clear(std::memory_order_release);
  }

  std::atomic_flag busy_;
  std::vector<std::byte*> free_;
};
#endif

/// Stacks of this OS thread that no fiber uses: mapping them anew would cost more than a launch.
class Stacks {
 public:
  ~Stacks() {
#if defined(GRADWIRE_SIMT_RACES)
    Shelf::instance().put(free_);
#else
    for (std::byte* const memory : free_) {
      munmap(memory, kMappedBytes);
    }
#endif
  }
  std::byte* take() {
    if (!free_.empty()) {
      std::byte* const memory = free_.back();
      free_.pop_back();
      return memory;
    }
#if defined(GRADWIRE_SIMT_RACES)
    if (std::byte* const memory = Shelf::instance().take(); memory != nullptr) {
      return memory;
    }
#endif
    void* const memory = mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
      throw std::bad_alloc();
    }
#if defined(GRADWIRE_SIMT_RACES)
    Shelf::mapped(static_cast<std::byte*>(memory));
#endif
    return static_cast<std::byte*>(memory);
  }
  void give_back(std::byte* memory) {
    forget_frames(memory + kGuardBytes);
    free_.push_back(memory);
  }

 private:
  std::vector<std::byte*> free_;
};
thread_local Stacks t_stacks;

}  // namespace

Fiber::~Fiber() {
  if (memory_ != nullptr) {
    t_stacks.give_back(memory_);
  }
}

void Fiber::start(std::function<void()> body) {
  if (memory_ == nullptr) {
    memory_ = t_stacks.take();
  }
  forget_frames(memory_ + kGuardBytes);
  body_ = std::move(body);
  fake_stack_ = nullptr;
  inside_ = context::make_fcontext(memory_ + kGuardBytes + kStackBytes, kStackBytes, enter);
}

void Fiber::enter(context::transfer_t from) {
  Fiber& self = *static_cast<Fiber*>(from.data);
  finish_switch(nullptr, &self.outer_stack_, &self.outer_stack_bytes_);
  self.outside_ = from.fctx;
  self.body_();
  start_switch(nullptr, self.outer_stack_, self.outer_stack_bytes_);
  context::jump_fcontext(self.outside_, nullptr);
  std::abort();  // a fiber that ended was resumed
}

void Fiber::resume() {
  start_switch(&outer_fake_stack_, memory_ + kGuardBytes, kStackBytes);
  inside_ = context::jump_fcontext(inside_, this).fctx;
  finish_switch(outer_fake_stack_, nullptr, nullptr);
}

void Fiber::suspend() {
  start_switch(&fake_stack_, outer_stack_, outer_stack_bytes_);
  outside_ = context::jump_fcontext(outside_, nullptr).fctx;
  finish_switch(fake_stack_, &outer_stack_, &outer_stack_bytes_);
}

}  // namespace gradwire::simt
