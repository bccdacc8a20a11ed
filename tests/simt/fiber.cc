#include "tests/simt/fiber.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

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

/// Stacks of this OS thread that no fiber uses: mapping them anew would cost more than a launch.
class Stacks {
 public:
  ~Stacks() {
    for (std::byte* const memory : free_) {
      munmap(memory, kGuardBytes + kStackBytes);
    }
  }
  std::byte* take() {
    if (!free_.empty()) {
      std::byte* const memory = free_.back();
      free_.pop_back();
      return memory;
    }
    void* const memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
      throw std::bad_alloc();
    }
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
