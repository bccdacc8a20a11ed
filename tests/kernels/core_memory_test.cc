#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "gradwire/kernels/core/memory.h"
#include "tests/kernels/process_memory.h"

namespace gradwire {
namespace {

uintptr_t address(const void* data) { return reinterpret_cast<uintptr_t>(data); }

TEST(Buffers, AreZeroedAndAligned) {
  for (const size_t bytes :
       {size_t{1}, size_t{64}, size_t{4097}, size_t{2} << 20, (size_t{4} << 20) + 12345}) {
    SCOPED_TRACE(bytes);
    const Buffer buffer(bytes);
    EXPECT_EQ(buffer.size_bytes(), bytes);
    EXPECT_EQ(address(buffer.data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(buffer.bytes().begin(), buffer.bytes().end(),
                            [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(buffer.device(), Device{});
  }
}

TEST(Buffers, MoveLeavesTheSourceEmpty) {
  Buffer first(100);
  std::byte* const data = first.data();
  Buffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: moved-from is specified to be empty
  EXPECT_EQ(first.size_bytes(), 0u);
  Buffer third(7);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size_bytes(), 100u);
  EXPECT_EQ(second.data(), nullptr);  // NOLINT
}

TEST(Buffers, AsCountsWholeElements) {
  const Buffer buffer(11);
  EXPECT_EQ(buffer.as<float>().size(), 2u);
  EXPECT_EQ(Buffer().as<float>().size(), 0u);
  EXPECT_EQ(Buffer(0).data(), nullptr);
}

// Equal elements of large buffers would else wait for each other in the same sets of a cache.
TEST(Buffers, LargeOnesBeginAtDifferentPlacesOfAPage) {
  constexpr size_t kBytes = size_t{2} << 20;
  std::vector<Buffer> buffers;
  std::set<uintptr_t> lines;
  for (size_t i = 0; i < 8; ++i) {
    buffers.emplace_back(kBytes + i);
    const Buffer& buffer = buffers.back();
    EXPECT_EQ(address(buffer.data()) % 64, 0u);
    lines.insert(address(buffer.data()) % 4096);
    std::memset(buffer.data(), 0xFF, buffer.size_bytes());  // up to the end it is ours
  }
  EXPECT_EQ(lines.size(), buffers.size());
  EXPECT_EQ(lines.count(0), 0u);  // where callers' own large arrays begin, give or take a header
  const Buffer moved = std::move(buffers[3]);
  buffers.clear();
  EXPECT_EQ(moved.bytes().back(), std::byte{0xFF});
}

// A plan makes room for much that a job never uses.
TEST(Buffers, TakeMemoryWhenTheyAreTouched) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have allocators of their own, and memory beside the program's";
#endif
  constexpr size_t kBytes = size_t{256} << 20;
  const size_t before = testing::status_bytes("VmRSS");
  {
    const Buffer buffer(kBytes);
    EXPECT_LT(testing::status_bytes("VmRSS"), before + kBytes / 8);
    for (size_t at = 0; at < kBytes; at += 4096 * 1021) {
      ASSERT_EQ(buffer.data()[at], std::byte{0});
    }
    std::memset(buffer.data(), 1, kBytes);
    EXPECT_GT(testing::status_bytes("VmRSS"), before + kBytes / 8 * 7);
  }
  EXPECT_LT(testing::status_bytes("VmRSS"), before + kBytes / 8);
}

TEST(Buffers, GiveTheirPagesBackAndAreZeroThen) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have allocators of their own, and memory beside the program's";
#endif
  constexpr size_t kBytes = size_t{64} << 20;
  const Buffer buffer(kBytes), small(4096);
  std::memset(buffer.data(), 1, kBytes);
  std::memset(small.data(), 1, small.size_bytes());
  const size_t before = testing::status_bytes("VmRSS");
  buffer.release_pages();
  small.release_pages();
  EXPECT_LT(testing::status_bytes("VmRSS"), before - kBytes / 8 * 7);
  EXPECT_EQ(small.data()[0], std::byte{1});
  EXPECT_EQ(buffer.data()[0], std::byte{0});
  EXPECT_EQ(buffer.bytes().back(), std::byte{0});
  buffer.bytes().back() = std::byte{2};
  EXPECT_EQ(buffer.bytes().back(), std::byte{2});
}

TEST(Buffers, MoreMemoryThanThereIsIsAnErrorThatNamesTheCall) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator aborts where the C library's returns an error";
#endif
  const size_t bytes = std::numeric_limits<size_t>::max() / 2;
  try {
    const Buffer buffer(bytes);
    FAIL() << "allocated " << bytes << " bytes";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("mmap"), std::string::npos);
  }
}

TEST(Workspaces, SpansAreAlignedDisjointAndStayValidWhileTheArenaGrows) {
  Workspace workspace;
  Workspace::Frame frame(workspace);
  std::vector<std::span<uint32_t>> spans;
  for (uint32_t i = 0; i < 60; ++i) {  // outgrows the first block several times
    spans.push_back(frame.take<uint32_t>(100 + 997 * i));
    EXPECT_EQ(address(spans.back().data()) % 64, 0u);
    std::fill(spans.back().begin(), spans.back().end(), i);
  }
  for (uint32_t i = 0; i < 60; ++i) {
    ASSERT_EQ(spans[i].size(), 100 + 997 * i);
    ASSERT_TRUE(std::all_of(spans[i].begin(), spans[i].end(), [&](uint32_t x) { return x == i; }))
        << "span " << i;
  }
}

TEST(Workspaces, ALoopStopsAllocatingAfterItsSecondStep) {
  Workspace workspace;
  std::vector<std::vector<std::byte*>> addresses;
  std::vector<size_t> capacities;
  for (int step = 0; step < 5; ++step) {
    Workspace::Frame frame(workspace);
    std::vector<std::byte*> taken;
    for (size_t i = 1; i <= 20; ++i) {
      taken.push_back(frame.take<std::byte>(i * 10000).data());
    }
    addresses.push_back(taken);
    capacities.push_back(workspace.capacity_bytes());
  }
  EXPECT_GE(capacities[0], 2100000u);
  for (size_t step = 2; step < 5; ++step) {
    EXPECT_EQ(addresses[step], addresses[1]);
    EXPECT_EQ(capacities[step], capacities[1]);
  }
  // One block by then: what is taken lies in one piece.
  for (size_t i = 1; i < 20; ++i) {
    EXPECT_EQ(addresses[1][i] - addresses[1][i - 1],
              static_cast<ptrdiff_t>((i * 10000 + 63) / 64 * 64));
  }
}

TEST(Workspaces, AnInnerFrameGivesBackOnlyItsOwn) {
  Workspace workspace;
  Workspace::Frame outer(workspace);
  const std::span<int> kept = outer.take<int>(1000);
  std::iota(kept.begin(), kept.end(), 0);
  int* inner_data = nullptr;
  for (int round = 0; round < 4; ++round) {
    Workspace::Frame inner(workspace);
    const std::span<int> scratch = inner.take<int>(50000);  // in a block of its own
    std::fill(scratch.begin(), scratch.end(), -1);
    if (round > 0) {
      EXPECT_EQ(scratch.data(), inner_data);
    }
    inner_data = scratch.data();
  }
  const std::span<int> after = outer.take<int>(10);
  std::fill(after.begin(), after.end(), -2);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(kept[static_cast<size_t>(i)], i);
  }
}

TEST(Workspaces, NothingIsTakenForZeroElementsAndTooManyAreRefused) {
  Workspace workspace;
  Workspace::Frame frame(workspace);
  EXPECT_EQ(frame.take<double>(0).size(), 0u);
  EXPECT_THROW(frame.take<std::byte>(std::numeric_limits<size_t>::max()), InvalidArgument);
}

TEST(CopyBytes, CopiesInStreamOrder) {
  const auto stream = make_cpu_stream({.threads = 2});
  std::vector<std::byte> source((size_t{3} << 20) + 17), destination(source.size());
  stream->enqueue([&source] {
    for (size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<std::byte>(i * 7 + (i >> 12));
    }
  });
  copy_bytes(destination, {}, source, {}, *stream);
  stream->wait();
  EXPECT_EQ(destination, source);
}

TEST(CopyBytes, RefusesUnequalSizesAndGpuMemoryOnACpuStream) {
  const auto stream = make_inline_stream();
  std::vector<std::byte> a(4), b(5);
  EXPECT_THROW(copy_bytes(a, {}, b, {}, *stream), InvalidArgument);
  const Device gpu{DeviceType::kCuda, 0};
  EXPECT_THROW(copy_bytes(a, gpu, a, {}, *stream), InvalidArgument);
  EXPECT_THROW(copy_bytes(a, {}, a, gpu, *stream), InvalidArgument);
}

}  // namespace
}  // namespace gradwire
