#pragma once
// What ThreadSanitizer is told of a launch where kernels are compiled for it (GRADWIRE_SIMT_RACES).
// A warp is a thread to it, and a barrier orders the warps of a block. Blocks are ordered by fences
// alone, or by their halves at an atomic: what happened before a release and an atomic behind it
// happened before what follows an atomic on the same word and an acquire behind that. The emulator
// is not instrumented itself, and orders nothing by its own locks. In other builds all of this does
// nothing.

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace gradwire::simt {

#if defined(GRADWIRE_SIMT_RACES)

inline constexpr bool kShowsRaces = true;

/// ThreadSanitizer takes no notice of the memory that the emulator itself touches in here.
class Untracked {
 public:
  Untracked();
  ~Untracked();
  Untracked(Untracked&&) = delete;
};

/// A point that fences released to: its address is what ThreadSanitizer knows it by.
using FencePoint = char;

/// What the atomics of a launch have handed on, for all its blocks.
class LaunchOrder {
 public:
  FencePoint* make_point();
  /// Points that come before the atomic on `address`.
  void publish(const void* address, const std::vector<FencePoint*>& points);
  /// Adds the points that came before atomics on `address`.
  void observe(const void* address, std::set<FencePoint*>& points);

 private:
  template <class F>
  void locked(const F& work);

  std::atomic_flag busy_;  // ThreadSanitizer would take a mutex for an order of the kernel's
  std::atomic<bool> any_ = false;
  std::map<const void*, std::set<FencePoint*>> published_;
  std::vector<std::unique_ptr<FencePoint>> points_;
};

/// Of one block. The OS thread that runs the block's fibers calls everything.
class BlockOrder {
 public:
  explicit BlockOrder(LaunchOrder& launch) : launch_(launch) {}
  ~BlockOrder() { end(); }
  BlockOrder(BlockOrder&&) = delete;

  void begin(size_t warps);
  /// All that the warps did happened before what follows.
  void end();
  /// Around what a thread of the warp does.
  void enter(size_t warp);
  void leave();
  /// All warps have met at a barrier; from outside of enter() and leave().
  void meet();
  /// Inside: the fence of a thread, its halves, and what stands before and behind its atomics.
  void fence() {
    acquire();
    release();
  }
  void release();
  void acquire();
  void before_atomic(const void* address);
  void after_atomic(const void* address);

 private:
  template <class F>
  void in_each_warp(const F& work);

  LaunchOrder& launch_;
  void* outside_ = nullptr;
  std::vector<void*> warps_;
  char met_ = 0;
  char ended_ = 0;
  FencePoint* open_ = nullptr;  // what fences release to until the next atomic
  std::vector<FencePoint*> made_;
  std::set<FencePoint*> seen_;  // by atomics; the next fence acquires them
};

#else

inline constexpr bool kShowsRaces = false;

struct Untracked {
  Untracked() {}  // not trivial, or the compiler warns of a variable without use
};
class LaunchOrder {};
class BlockOrder {
 public:
  explicit BlockOrder(LaunchOrder&) {}
  void begin(size_t) {}
  void end() {}
  void enter(size_t) {}
  void leave() {}
  void meet() {}
  void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  void release() {}  // the emulator's atomics make order in this build
  void acquire() {}
  void before_atomic(const void*) {}
  void after_atomic(const void*) {}
};

#endif

}  // namespace gradwire::simt
