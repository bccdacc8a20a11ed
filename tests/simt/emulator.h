#pragma once
// An emulator of CUDA's execution model on the CPU: one fiber per CUDA thread, so that kernels with
// barriers, warp primitives and shared memory run unchanged under a debugger and sanitizers.
// cuda_shim.h gives these functions the names that kernels use.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>

namespace gradwire::simt {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

struct Extent3 {
  unsigned x = 1, y = 1, z = 1;
  Extent3(unsigned width = 1, unsigned height = 1, unsigned depth = 1)  // NOLINT: as dim3
      : x(width), y(height), z(depth) {}
  size_t count() const { return size_t{x} * y * z; }
};

/// A kernel broke a rule of the execution model; the message names kernel, block and threads.
class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How launches run from now on, in this process.
struct Options {
  uint32_t seed = 0;               ///< not 0: blocks and threads run in a shuffled order
  bool concurrent_blocks = false;  ///< one OS thread per block, for blocks that wait for others
};
void set_options(const Options& options);

struct Launch {
  const char* kernel;  ///< its name, for messages and launched_kernels()
  Extent3 grid;
  Extent3 block;
  size_t dynamic_shared_bytes = 0;
};

/// Runs `body` once per thread and returns when all are done.
/// @throws KernelFault; and what the body throws.
void launch(const Launch& what, const std::function<void()>& body);

/// How many launches there were so far.
uint64_t launches();

/// Names of all kernels launched so far, without template arguments.
std::set<std::string> launched_kernels();

// What follows is called by a kernel's threads only.

Index3 thread_index();
Index3 block_index();
Extent3 block_extent();
Extent3 grid_extent();
unsigned lane();

/// The block's barrier. @returns how many threads came with `predicate`.
unsigned barrier(bool predicate, const char* name);

/// All lanes of `mask` meet; each gives a value. @returns the values of the 32 lanes, valid until
/// the thread's next call; `present` of those in the mask.
const uint64_t* exchange(uint32_t mask, uint64_t value, const char* name);

/// Lets other threads run; what a spinning thread must call.
void yield();

/// A fence of the whole GPU, its halves, and what stands before and behind every atomic
/// (race_order.h).
void fence();
void release();
void acquire();
void before_atomic(const void* address);
void after_atomic(const void* address);

/// The block's memory named by `key`, made at its first use: a heap object of its own, so that
/// AddressSanitizer sees an overrun. It is filled with 0xCD: shared memory is not zeroed.
void* shared_memory(const char* key, size_t bytes);
void* dynamic_shared_memory();

}  // namespace gradwire::simt
