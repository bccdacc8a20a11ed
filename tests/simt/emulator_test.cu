// The emulator itself: what kernels may rely on, and that each fault is seen and named.

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "gradwire/kernels/ops/block.cuh"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

using cuda::kAllLanes;
using cuda::LaunchShape;

template <class... P>
void run(void (*kernel)(P...), size_t blocks, unsigned threads, std::type_identity_t<P>... args) {
  EmulatedStream stream;
  cuda::launch("kernel", kernel, LaunchShape{blocks, threads, stream}, args...);
}

template <class F>
std::string fault_of(F&& launch) {
  try {
    launch();
  } catch (const simt::KernelFault& fault) {
    return fault.what();
  }
  return "no fault";
}

#define EXPECT_FAULT(text, ...)                                   \
  EXPECT_NE(fault_of([&] { __VA_ARGS__; }).find(text), std::string::npos) \
      << fault_of([&] { __VA_ARGS__; })

class Emulator : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, Emulator, kOrders);

__global__ void indices_kernel(unsigned* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x * 1000 + threadIdx.x + gridDim.x * 100000;
}
TEST_P(Emulator, EveryThreadRunsOnceAndKnowsItsPlace) {
  std::vector<unsigned> out(3 * 70);
  run(indices_kernel, 3, 70, out.data());
  for (unsigned i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], i / 70 * 1000 + i % 70 + 300000);
  }
}

TEST(EmulatorQueue, TakesLaunchesThatRunLaterWithTheArgumentsOfTheCall) {
  static std::vector<std::function<void()>> queue;
  simt::set_queue([](void*, std::function<void()> work) { queue.push_back(std::move(work)); });
  std::vector<unsigned> out(64);
  {
    unsigned* argument = out.data();
    run(indices_kernel, 1, 64, argument);
    argument = nullptr;
  }
  EXPECT_FAULT("1025 threads", run(indices_kernel, 1, 1025, out.data()));
  simt::set_queue(nullptr);
  EXPECT_EQ(out, std::vector<unsigned>(64));
  ASSERT_EQ(queue.size(), 1u);
  queue[0]();
  EXPECT_EQ(out[63], 100063u);
}

__global__ void reverse_kernel(const unsigned* in, unsigned* out) {
  GRADWIRE_SHARED(tile, unsigned[256]);
  tile[threadIdx.x] = in[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * 256 + threadIdx.x] = tile[255 - threadIdx.x];
}
TEST_P(Emulator, ABarrierOrdersSharedMemory) {
  std::vector<unsigned> in(512), out(512);
  std::iota(in.begin(), in.end(), 0u);
  run(reverse_kernel, 2, 256, in.data(), out.data());
  for (unsigned i = 0; i < 512; ++i) {
    EXPECT_EQ(out[i], i / 256 * 256 + 255 - i % 256);
  }
}

__global__ void rotate_kernel(const unsigned* in, unsigned* out) {
  GRADWIRE_DYNAMIC_SHARED(tile, unsigned);
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[(threadIdx.x + 1) % blockDim.x];
}
TEST_P(Emulator, DynamicSharedMemoryHasTheBytesAskedFor) {
  std::vector<unsigned> in(100), out(100);
  std::iota(in.begin(), in.end(), 0u);
  const LaunchShape shape{1, 100, stream_, 400};
  GRADWIRE_LAUNCH(rotate_kernel, shape, in.data(), out.data());
  for (unsigned i = 0; i < 100; ++i) {
    EXPECT_EQ(out[i], (i + 1) % 100);
  }
  const LaunchShape large{1, 100, stream_, 50000};
  EXPECT_THROW(GRADWIRE_LAUNCH(rotate_kernel, large, in.data(), out.data()), InvalidArgument);
}

__global__ void unordered_kernel(unsigned* out) {
  GRADWIRE_SHARED(tile, unsigned[64]);
  tile[threadIdx.x] = 1;
  out[threadIdx.x] = tile[63 - threadIdx.x];
}
TEST(EmulatorOrder, AMissingBarrierShows) {
  for (const uint32_t seed : {0u, 1u, 2u}) {
    simt::set_options({.seed = seed});
    std::vector<unsigned> out(64);
    run(unordered_kernel, 1, 64, out.data());
    EXPECT_NE(out, std::vector<unsigned>(64, 1)) << seed;
  }
  simt::set_options({});
}

__global__ void primitives_kernel(unsigned* out) {
  const unsigned l = threadIdx.x % 32;
  unsigned* mine = out + threadIdx.x * 12;
  mine[0] = __shfl_sync(kAllLanes, l * 10, 7);
  mine[1] = __shfl_up_sync(kAllLanes, l, 3);
  mine[2] = __shfl_down_sync(kAllLanes, l, 5, 8);
  mine[3] = __shfl_xor_sync(kAllLanes, l, 6);
  mine[4] = __ballot_sync(kAllLanes, l % 3 == 0);
  mine[5] = __match_any_sync(kAllLanes, l / 4);
  mine[6] = __reduce_max_sync(kAllLanes, l ^ 21u);
  mine[7] = __reduce_add_sync(kAllLanes, l);
  mine[8] = l < 16 ? __ballot_sync(0xFFFFu, l % 2) : __ballot_sync(0xFFFF0000u, l % 2);
  uint32_t total;
  mine[9] = cuda::warp_exclusive_sum(l, total);
  mine[10] = total;
  mine[11] = static_cast<unsigned>(__syncthreads_count(threadIdx.x < 40));
}
TEST_P(Emulator, WarpPrimitivesDoWhatTheProgrammingGuideSays) {
  std::vector<unsigned> out(64 * 12);
  run(primitives_kernel, 1, 64, out.data());
  for (unsigned t = 0; t < 64; ++t) {
    const unsigned l = t % 32;
    const unsigned* const mine = out.data() + t * 12;
    EXPECT_EQ(mine[0], 70u);
    EXPECT_EQ(mine[1], l < 3 ? l : l - 3);
    EXPECT_EQ(mine[2], l % 8 + 5 < 8 ? l + 5 : l);
    EXPECT_EQ(mine[3], l ^ 6u);
    EXPECT_EQ(mine[4], 0x49249249u);
    EXPECT_EQ(mine[5], 0xFu << (l / 4 * 4));
    EXPECT_EQ(mine[6], 31u);
    EXPECT_EQ(mine[7], 496u);
    EXPECT_EQ(mine[8], l < 16 ? 0xAAAAu : 0xAAAA0000u);
    EXPECT_EQ(mine[9], l * (l - 1) / 2);
    EXPECT_EQ(mine[10], 496u);
    EXPECT_EQ(mine[11], 40u);
  }
}

__global__ void scan_kernel(const uint32_t* in, uint32_t* out, uint32_t* totals) {
  for (unsigned round = 0; round < 2; ++round) {
    const unsigned at = round * blockDim.x + threadIdx.x;
    uint32_t total;
    out[at] = cuda::block_exclusive_sum(in[at], total);
    totals[round] = total;
  }
}
TEST_P(Emulator, ABlockScansTwiceInARow) {
  for (const unsigned threads : {32u, 96u, 1024u}) {
    std::vector<uint32_t> in(2 * threads), out(2 * threads), totals(2);
    for (unsigned i = 0; i < in.size(); ++i) {
      in[i] = i * i % 17;
    }
    run(scan_kernel, 1, threads, in.data(), out.data(), totals.data());
    for (unsigned round = 0; round < 2; ++round) {
      uint32_t sum = 0;
      for (unsigned i = round * threads; i < (round + 1) * threads; ++i) {
        ASSERT_EQ(out[i], sum) << i;
        sum += in[i];
      }
      EXPECT_EQ(totals[round], sum);
    }
  }
}

__global__ void last_block_kernel(uint32_t* counter, const uint32_t* in, uint32_t* sums,
                                  uint32_t* out) {
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = in[blockIdx.x];
  }
  if (cuda::is_last_block(counter) && threadIdx.x == 0) {
    for (unsigned i = 0; i < gridDim.x; ++i) {
      *out += sums[i];
    }
  }
}
__global__ void chain_kernel(uint32_t* turn) {
  if (threadIdx.x == 0) {
    while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != blockIdx.x) {
      __nanosleep(100);
    }
    __atomic_store_n(turn, blockIdx.x + 1, __ATOMIC_RELEASE);
  }
  __syncthreads();
}
TEST_P(Emulator, TheLastBlockSeesTheOthersAndResetsTheCounter) {
  const std::vector<uint32_t> in = {1, 2, 3, 4, 5, 6, 7};
  uint32_t counter = 0, out = 0;
  std::vector<uint32_t> sums(7);
  for (const bool concurrent : {false, true}) {
    simt::set_options({.seed = GetParam(), .concurrent_blocks = concurrent});
    out = 0;
    run(last_block_kernel, 7, 64, &counter, in.data(), sums.data(), &out);
    EXPECT_EQ(out, 28u);
    EXPECT_EQ(counter, 0u);
  }
}
TEST(EmulatorOrder, ConcurrentBlocksMayWaitForEachOther) {
  simt::set_options({.concurrent_blocks = true});
  uint32_t turn = 0;
  run(chain_kernel, 20, 32, &turn);
  EXPECT_EQ(turn, 20u);
  simt::set_options({});
}
TEST(EmulatorFaults, ASpinThatNobodyEndsIsADeadlock) {
  uint32_t turn = 1;
  EXPECT_FAULT("deadlock: 1 threads spin", run(chain_kernel, 1, 1, &turn));
  EXPECT_FAULT("31 threads wait in __syncthreads, 0 have exited, 1 do something else",
               run(chain_kernel, 1, 32, &turn));
}

__global__ void divergent_barrier_kernel(int n) {
  if (static_cast<int>(threadIdx.x) >= n) {
    __syncthreads();
  }
}
TEST(EmulatorFaults, ABarrierThatSomeThreadsMissIsNamed) {
  EXPECT_FAULT("barrier divergence: 61 threads wait in __syncthreads, 3 have exited",
               run(divergent_barrier_kernel, 2, 64, 3));
}

__global__ void different_barriers_kernel() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads_count(1);
  }
}
TEST(EmulatorFaults, DifferentBarriersDoNotMeet) {
  EXPECT_FAULT("barrier divergence: is at __syncthreads_count", run(different_barriers_kernel, 1, 64));
}

__global__ void mask_mismatch_kernel() {
  __ballot_sync(threadIdx.x == 5 ? 0x21u : 0x3Fu, 1);
}
__global__ void lane_not_in_mask_kernel() { __ballot_sync(0xFFu, 1); }
__global__ void exited_lane_kernel() {
  if (threadIdx.x != 4) {
    __syncwarp();
  }
}
__global__ void short_warp_kernel() { __syncwarp(); }
__global__ void mixed_primitives_kernel() {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    __ballot_sync(kAllLanes, 1);
  }
}
__global__ void warp_and_barrier_kernel() {
  if (threadIdx.x < 31) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}
TEST(EmulatorFaults, WarpPrimitivesCheckTheirMasks) {
  EXPECT_FAULT("warp mismatch", run(mask_mismatch_kernel, 1, 6));
  EXPECT_FAULT("thread 8: __ballot_sync: its own lane is not in the mask",
               run(lane_not_in_mask_kernel, 1, 32));
  EXPECT_FAULT("exited", run(exited_lane_kernel, 1, 32));
  EXPECT_FAULT("beyond the block's last thread", run(short_warp_kernel, 1, 20));
  EXPECT_FAULT("warp mismatch: is at __ballot_sync", run(mixed_primitives_kernel, 1, 32));
  EXPECT_FAULT("deadlock: thread 0 waits in __syncwarp with mask 0xffffffff for lanes 0x80000000",
               run(warp_and_barrier_kernel, 1, 32));
}

__global__ void empty_kernel() {}
__global__ void shared_kernel() {
  GRADWIRE_SHARED(one, char[200000]);
  GRADWIRE_SHARED(two, char[100000]);
  one[0] = two[0];
}
TEST(EmulatorFaults, LimitsOfTheDeviceHold) {
  EXPECT_FAULT("1025 threads per block", run(empty_kernel, 1, 1025));
  EXPECT_FAULT("shared memory of the block is 300000 bytes", run(shared_kernel, 1, 32));
}

TEST(EmulatorFaults, AFaultLeavesTheEmulatorUsable) {
  EXPECT_FAULT("barrier divergence", run(divergent_barrier_kernel, 1, 64, 3));
  std::vector<unsigned> out(64);
  run(indices_kernel, 1, 64, out.data());
  EXPECT_EQ(out[63], 100063u);
}

}  // namespace
}  // namespace gradwire::testing
