#pragma once
// One block of an emulated grid: its threads, its shared memory, and the scheduler that runs them.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/simt/emulator.h"
#include "tests/simt/fiber.h"
#include "tests/simt/race_order.h"

namespace gradwire::simt {

inline constexpr unsigned kWarp = 32;
inline constexpr size_t kMostSharedBytes = 227 * 1024;  // of a block on sm_90

enum class State : uint8_t { kReady, kAtBarrier, kAtWarp, kDone };

struct Thread {
  Fiber fiber;
  unsigned index = 0;
  Index3 place;  // threadIdx
  State state = State::kReady;
  const char* waits_at = "";
  uint32_t mask = 0;     // of the warp primitive it waits at
  uint64_t given = 0;    // what it brought there
  uint64_t taken[kWarp]; // what the lanes brought
};

/// The i-th of an extent, x first.
inline Index3 index_in(Extent3 extent, size_t i) {
  return {static_cast<unsigned>(i % extent.x), static_cast<unsigned>(i / extent.x % extent.y),
          static_cast<unsigned>(i / extent.x / extent.y)};
}

struct SharedObject {
  const char* key;
  size_t bytes;
  std::unique_ptr<std::byte[]> memory;
};

/// One block and its scheduler; reused for the blocks an OS thread runs one after another.
class Block {
 public:
  Block(const Launch& what, const std::function<void()>& body, LaunchOrder& order)
      : what_(what), body_(body), threads_(what.block.count()), order_(order) {
    for (unsigned i = 0; i < threads_.size(); ++i) {
      threads_[i].index = i;
      threads_[i].place = index_in(what.block, i);
    }
  }

  void run(Index3 index, uint32_t seed);

  const Launch& what() const { return what_; }
  Index3 index() const { return index_; }
  Thread& running() { return *running_; }
  BlockOrder& order() { return order_; }

  unsigned barrier(bool predicate, const char* name);
  const uint64_t* exchange(uint32_t mask, uint64_t value, const char* name);
  void* shared_memory(const char* key, size_t bytes);
  void* dynamic_shared_memory() { return dynamic_.get(); }
  void yield() {
    idle_ = true;
    switch_away();
    std::this_thread::yield();
  }

 private:
  void main_of_thread();
  void resume(Thread& thread);
  void switch_away() { running_->fiber.suspend(); }
  void open_barrier();
  [[noreturn]] void fail(const std::string& text) const;
  std::string place() const;
  std::string describe_standstill() const;

  const Launch& what_;
  const std::function<void()>& body_;
  std::vector<Thread> threads_;
  std::vector<SharedObject> shared_;
  std::unique_ptr<std::byte[]> dynamic_;
  size_t shared_bytes_ = 0;
  Index3 index_;
  Thread* running_ = nullptr;
  size_t done_ = 0;
  size_t at_barrier_ = 0;
  unsigned voted_ = 0;
  unsigned votes_ = 0;  // of the barrier opened last
  bool idle_ = false;   // the thread resumed last only spun
  std::exception_ptr failure_;
  BlockOrder order_;
};

}  // namespace gradwire::simt
