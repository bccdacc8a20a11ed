// What ThreadSanitizer sees of kernels in the emulator: is_last_block() makes order, and without
// one of its fences or its atomic it makes none, whatever order blocks and threads run in.

#include <gtest/gtest.h>

#include <vector>

#include "gradwire/kernels/ops/block.cuh"
#include "tests/simt/races/race_reports.h"
#include "tests/simt/support.h"

/// atomicInc() without an atomic.
inline unsigned plain_inc(unsigned* counter, unsigned limit) {
  const unsigned old = *counter;
  *counter = old >= limit ? 0 : old + 1;
  return old;
}

// block.cuh with a fault each, in namespaces of their own (races.cmake).
#include "simt_races/no_atomic.cuh"
#include "simt_races/no_fence.cuh"
#include "simt_races/no_fence_before.cuh"
#include "simt_races/no_fence_behind.cuh"

namespace gradwire::testing {
namespace {

constexpr unsigned kBlocks = 4;
constexpr unsigned kWarps = 3;
constexpr unsigned kThreads = kWarps * cuda::kWarp;
constexpr uint32_t kSeeds = 20;

/// Every warp of every block writes; the last block adds up what all have written.
template <class IsLast>
__global__ void add_blocks_kernel(uint32_t* arrived, uint32_t* parts, uint32_t* out,
                                  IsLast is_last) {
  const unsigned warp = cuda::warp_index();
  if (cuda::lane_index() == 0) {
    parts[blockIdx.x * kWarps + warp] = 10 * blockIdx.x + warp;
  }
  if (is_last(arrived) && cuda::lane_index() == 0) {
    for (unsigned i = 0; i < kBlocks; ++i) {
      out[warp] += parts[i * kWarps + warp];
    }
  }
}

/// Reports of one launch.
template <class IsLast>
int reports_of(uint32_t seed, IsLast is_last, std::vector<uint32_t>& out) {
  simt::set_options({.seed = seed, .concurrent_blocks = true});
  std::vector<uint32_t> parts(kBlocks * kWarps);
  uint32_t arrived = 0;
  const int before = race_reports();
  EmulatedStream stream;
  cuda::launch("add_blocks_kernel", add_blocks_kernel<IsLast>,
               cuda::LaunchShape{kBlocks, kThreads, stream}, &arrived, parts.data(), out.data(),
               is_last);
  simt::set_options({});
  return race_reports() - before;
}

template <class IsLast>
void expect_races(IsLast is_last) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    std::vector<uint32_t> out(kWarps);
    EXPECT_GT(reports_of(seed, is_last, out), 0) << "seed " << seed;
  }
}

TEST(Races, AreNoneWhereFencesAndAtomicsAre) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    std::vector<uint32_t> out(kWarps);
    EXPECT_EQ(reports_of(
                  seed, [](uint32_t* a) { return cuda::is_last_block(a); }, out),
              0)
        << "seed " << seed;
    EXPECT_EQ(out, (std::vector<uint32_t>{60, 64, 68})) << "seed " << seed;
  }
}

TEST(Races, ShowThatFencesAreMissing) {
  expect_races([](uint32_t* arrived) { return no_fence::is_last_block(arrived); });
}

TEST(Races, ShowThatTheFenceBeforeTheAtomicIsMissing) {
  expect_races([](uint32_t* arrived) { return no_fence_before::is_last_block(arrived); });
}

TEST(Races, ShowThatTheFenceBehindTheAtomicIsMissing) {
  expect_races([](uint32_t* arrived) { return no_fence_behind::is_last_block(arrived); });
}

TEST(Races, ShowThatTheAtomicIsMissing) {
  expect_races([](uint32_t* arrived) { return no_atomic::is_last_block(arrived); });
}

/// Warps hand on through shared memory, with a barrier between or without.
__global__ void hand_on_kernel(bool waits, uint32_t* out) {
  GRADWIRE_SHARED(held, uint32_t[kWarps]);
  if (cuda::lane_index() == 0) {
    held[cuda::warp_index()] = cuda::warp_index();
  }
  if (waits) {
    __syncthreads();
  }
  if (cuda::lane_index() == 0) {
    out[cuda::warp_index()] = held[kWarps - 1 - cuda::warp_index()];
  }
}

TEST(Races, ShowThatABarrierIsMissing) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    for (const bool waits : {true, false}) {
      simt::set_options({.seed = seed});
      std::vector<uint32_t> out(kWarps);
      const int before = race_reports();
      EmulatedStream stream;
      cuda::launch("hand_on_kernel", hand_on_kernel, cuda::LaunchShape{1, kThreads, stream}, waits,
                   out.data());
      EXPECT_EQ(race_reports() > before, !waits) << "seed " << seed;
    }
  }
  simt::set_options({});
}

__global__ void count_kernel(uint32_t* shared_count) { atomicAdd(shared_count, 1u); }

TEST(Races, AreNoneBetweenAtomics) {
  uint32_t count = 0;
  const int before = race_reports();
  EmulatedStream stream;
  cuda::launch("count_kernel", count_kernel, cuda::LaunchShape{kBlocks, kThreads, stream}, &count);
  EXPECT_EQ(count, kBlocks * kThreads);
  EXPECT_EQ(race_reports(), before);
}

}  // namespace
}  // namespace gradwire::testing
