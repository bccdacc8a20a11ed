// A program of its own, because it replaces the global operator new to count calls.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/optimizers/model.h"

namespace {
std::atomic<size_t> allocations{0};
}  // namespace

// Not inlined: gcc would see new and free as a mismatch at the call.
__attribute__((noinline)) void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace gradwire {
namespace {

TEST(OptimizerAllocation, ApplyAllocatesNothing) {
  for (const OptimizerRow& row : optimizer_registry()) {
    for (const StateBits state : {StateBits::kFloat32, StateBits::kEight}) {
      OptimizerSpec spec{.name = std::string(row.name), .state = state};
      spec.freeze_step = 1;  // so that some exchange momenta from the second step on
      SCOPED_TRACE(to_string(spec));
      Model model;
      const auto optimizer = make_optimizer(spec, model.parameters());
      const auto stream = make_inline_stream(2);
      Workspace workspace;
      Context context{*stream, workspace};
      const size_t before = allocations;
      for (int t = 0; t < 3; ++t) {
        optimizer->prepare(context);
        optimizer->apply(0.1, context);
        stream->wait();
      }
      EXPECT_EQ(allocations, before);
      EXPECT_EQ(workspace.capacity_bytes(), 0u);
    }
  }
}

}  // namespace
}  // namespace gradwire
