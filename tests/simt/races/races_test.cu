// What ThreadSanitizer sees of kernels in the emulator: is_last_block() makes order, and without a
// half of its fence, its atomic or one of its barriers it makes none, whatever order blocks and
// threads run in.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "gradwire/kernels/ops/block.cuh"
#include "tests/simt/races/race_reports.h"
#include "tests/simt/support.h"

inline unsigned inc_between_fences(unsigned* counter, unsigned limit) {
  __threadfence();
  const unsigned old = atomicInc(counter, limit);
  __threadfence();
  return old;
}
inline unsigned inc_that_releases(unsigned* counter, unsigned limit) {
  gradwire::simt::release();
  return atomicInc(counter, limit);
}
inline unsigned inc_that_acquires(unsigned* counter, unsigned limit) {
  const unsigned old = atomicInc(counter, limit);
  gradwire::simt::acquire();
  return old;
}
/// Fences, but no atomic between.
inline unsigned plain_inc(unsigned* counter, unsigned limit) {
  __threadfence();
  const unsigned old = *counter;
  *counter = old >= limit ? 0 : old + 1;
  __threadfence();
  return old;
}

// block.cuh with another is_last_block() each, in namespaces of their own (races.cmake).
#include "simt_races/between_fences.cuh"
#include "simt_races/no_acquire.cuh"
#include "simt_races/no_atomic.cuh"
#include "simt_races/no_barrier_before.cuh"
#include "simt_races/no_barrier_behind.cuh"
#include "simt_races/no_fence.cuh"
#include "simt_races/no_release.cuh"

namespace gradwire::testing {
namespace {

constexpr unsigned kBlocks = 3;
constexpr unsigned kWarps = 3;
constexpr unsigned kThreads = kWarps * cuda::kWarp;
constexpr uint32_t kSeeds = 20;
constexpr uint32_t kSampledSeeds = 3;

/// 1 to 20.
std::vector<uint32_t> all_seeds() {
  std::vector<uint32_t> seeds(kSeeds);
  std::iota(seeds.begin(), seeds.end(), 1u);
  return seeds;
}

/// A few of them, drawn by GRADWIRE_TEST_SEED; all where GRADWIRE_SOAK is set (tests/soak.py).
std::vector<uint32_t> sampled_seeds() {
  std::vector<uint32_t> seeds = all_seeds();
  const char* const soak = std::getenv("GRADWIRE_SOAK");
  if (soak == nullptr || *soak == '\0') {
    const char* const given = std::getenv("GRADWIRE_TEST_SEED");
    std::mt19937_64 random(given == nullptr ? 20240229 : std::strtoull(given, nullptr, 10));
    std::ranges::shuffle(seeds, random);
    seeds.resize(kSampledSeeds);
  }
  return seeds;
}

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
void expect_races(const std::vector<uint32_t>& seeds, IsLast is_last) {
  for (const uint32_t seed : seeds) {
    std::vector<uint32_t> out(kWarps);
    EXPECT_GT(reports_of(seed, is_last, out), 0) << "seed " << seed;
  }
}

template <class IsLast>
void expect_none(const std::vector<uint32_t>& seeds, IsLast is_last) {
  for (const uint32_t seed : seeds) {
    std::vector<uint32_t> out(kWarps);
    EXPECT_EQ(reports_of(seed, is_last, out), 0) << "seed " << seed;
    EXPECT_EQ(out, (std::vector<uint32_t>{30, 33, 36})) << "seed " << seed;
  }
}

TEST(Races, AreNoneWhereAnAtomicReleasesAndAcquires) {
  expect_none(all_seeds(), [](uint32_t* arrived) { return cuda::is_last_block(arrived); });
}

TEST(Races, AreNoneWhereAnAtomicStandsBetweenFences) {
  expect_none(sampled_seeds(),
              [](uint32_t* arrived) { return between_fences::is_last_block(arrived); });
}

TEST(Races, ShowThatTheFenceIsMissing) {
  expect_races(all_seeds(), [](uint32_t* arrived) { return no_fence::is_last_block(arrived); });
}

TEST(Races, ShowThatTheReleaseIsMissing) {
  expect_races(sampled_seeds(),
               [](uint32_t* arrived) { return no_release::is_last_block(arrived); });
}

TEST(Races, ShowThatTheAcquireIsMissing) {
  expect_races(sampled_seeds(),
               [](uint32_t* arrived) { return no_acquire::is_last_block(arrived); });
}

TEST(Races, ShowThatTheAtomicIsMissing) {
  expect_races(all_seeds(), [](uint32_t* arrived) { return no_atomic::is_last_block(arrived); });
}

TEST(Races, ShowThatTheBarrierBeforeTheAtomicIsMissing) {
  expect_races(sampled_seeds(),
               [](uint32_t* arrived) { return no_barrier_before::is_last_block(arrived); });
}

TEST(Races, ShowThatTheBarrierBehindTheAtomicIsMissing) {
  expect_races(sampled_seeds(),
               [](uint32_t* arrived) { return no_barrier_behind::is_last_block(arrived); });
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
  for (const uint32_t seed : all_seeds()) {
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
