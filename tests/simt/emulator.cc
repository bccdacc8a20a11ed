#include "tests/simt/emulator.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tests/simt/block.h"
#include "tests/simt/queue.h"

namespace gradwire::simt {
namespace {

constexpr unsigned kMostThreads = 1024;
constexpr size_t kMostConcurrentBlocks = 512;
constexpr size_t kMostAtATime = 32;  // of blocks that need not be concurrent

thread_local Block* t_block = nullptr;

struct Process {
  std::mutex mutex;
  std::set<std::string> launched;
  uint64_t launches = 0;
  Options options;
};
Process& process() {
  static Process instance;
  return instance;
}

Options remember(const char* kernel) {
  std::string name(kernel);
  std::erase(name, '(');
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  ++p.launches;
  p.launched.insert(name.substr(0, name.find_first_of("<) ")));
  return p.options;
}

void check_launch(const Launch& what) {
  const auto require = [&](bool condition, const std::string& text) {
    if (!condition) {
      throw KernelFault(std::string(what.kernel) + ": " + text);
    }
  };
  const size_t threads = what.block.count();
  require(threads > 0 && threads <= kMostThreads,
          std::to_string(threads) + " threads per block, must be 1 to 1024");
  require(what.grid.count() > 0 && what.grid.y < 65536 && what.grid.z < 65536 &&
              what.grid.x <= 0x7FFFFFFFu,
          "the grid is empty or too large");
  require(what.dynamic_shared_bytes <= kMostSharedBytes, "too much dynamic shared memory");
}

void run_block(Block& block, size_t i, uint32_t seed) {
  Block* const outer = t_block;
  t_block = &block;
  try {
    block.run(index_in(block.what().grid, i), seed);
  } catch (...) {
    t_block = outer;
    throw;
  }
  t_block = outer;
}

void check_concurrent(const Launch& what) {
  if (what.grid.count() > kMostConcurrentBlocks) {
    throw KernelFault(std::string(what.kernel) + ": " + std::to_string(what.grid.count()) +
                      " concurrent blocks, at most " + std::to_string(kMostConcurrentBlocks));
  }
}

/// An OS thread for each block, `at_once` of them at a time.
void run_concurrently(const Launch& what, const std::function<void()>& body, uint32_t seed,
                      size_t at_once) {
  const size_t blocks = what.grid.count();
  LaunchOrder order;
  std::vector<std::exception_ptr> failures(blocks);
  for (size_t begin = 0; begin < blocks; begin += at_once) {
    std::vector<std::jthread> threads;
    for (size_t i = begin; i < std::min(blocks, begin + at_once); ++i) {
      threads.emplace_back([&, i] {
        try {
          Block block(what, body, order);
          run_block(block, i, seed);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

}  // namespace

void set_options(const Options& options) {
  const std::lock_guard lock(process().mutex);
  process().options = options;
}

uint64_t launches() {
  const std::lock_guard lock(process().mutex);
  return process().launches;
}

std::set<std::string> launched_kernels() {
  const std::lock_guard lock(process().mutex);
  return process().launched;
}

void launch(const Launch& what, const std::function<void()>& body) {
  check_launch(what);
  const Options options = remember(what.kernel);
  if (options.concurrent_blocks) {
    check_concurrent(what);
    run_concurrently(what, body, options.seed, what.grid.count());
    return;
  }
  if (kShowsRaces && what.grid.count() > 1) {
    run_concurrently(what, body, options.seed, kMostAtATime);
    return;
  }
  std::vector<size_t> order(what.grid.count());
  std::iota(order.begin(), order.end(), size_t{0});
  if (options.seed != 0) {
    std::mt19937 random(options.seed);
    std::ranges::shuffle(order, random);
  }
  LaunchOrder launch_order;
  Block block(what, body, launch_order);
  for (const size_t i : order) {
    run_block(block, i, options.seed);
  }
}

namespace {
std::atomic<Queue> current_queue = nullptr;
}  // namespace

void set_queue(Queue queue) { current_queue = queue; }

void enqueue(void* native_stream, const Launch& what, std::function<void()> body) {
  const Queue queue = current_queue;
  if (queue == nullptr) {
    launch(what, body);
    return;
  }
  check_launch(what);
  queue(native_stream, [what, body = std::move(body)] { launch(what, body); });
}

Index3 thread_index() { return t_block->running().place; }
Index3 block_index() { return t_block->index(); }
Extent3 block_extent() { return t_block->what().block; }
Extent3 grid_extent() { return t_block->what().grid; }
unsigned lane() { return t_block->running().index % kWarp; }
unsigned barrier(bool predicate, const char* name) { return t_block->barrier(predicate, name); }
const uint64_t* exchange(uint32_t mask, uint64_t value, const char* name) {
  return t_block->exchange(mask, value, name);
}
void yield() { t_block->yield(); }
void fence() { t_block->order().fence(); }
void release() { t_block->order().release(); }
void acquire() { t_block->order().acquire(); }
void before_atomic(const void* address) { t_block->order().before_atomic(address); }
void after_atomic(const void* address) { t_block->order().after_atomic(address); }
void* shared_memory(const char* key, size_t bytes) { return t_block->shared_memory(key, bytes); }
void* dynamic_shared_memory() { return t_block->dynamic_shared_memory(); }

}  // namespace gradwire::simt
