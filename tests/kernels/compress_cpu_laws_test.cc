// Laws of the CPU's compressors alone: guards around what they write, threads, instruction sets.

#include <gtest/gtest.h>

#include "gradwire/kernels/ops/elementwise.h"
#include "tests/kernels/compress_cases.h"
#include "tests/support/close.h"
#include "tests/support/isa_paths.h"
#include "tests/support/sampling.h"

namespace gradwire::testing {
namespace {

constexpr uint64_t kSeed = kLawSeed;

/// A payload between guard bytes, at an address that is not a multiple of anything.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : memory_(bytes + 2 * kGuard, std::byte{0xA5}) {}
  Payload payload() { return std::span(memory_).subspan(kGuard, memory_.size() - 2 * kGuard); }
  bool intact() const {
    const auto whole = [](std::byte b) { return b == std::byte{0xA5}; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, whole) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), whole);
  }

 private:
  static constexpr size_t kGuard = 67;
  std::vector<std::byte> memory_;
};

TEST(CpuCompressorLaws, WritesOnlyItsPayload) {
  for (const std::string& spec : all_specs()) {
    for (const size_t numel : odd_sizes()) {
      SCOPED_TRACE(concat(spec, " ", numel));
      Rig rig(spec, {.numel = numel, .seed = kSeed});
      Compressor& compressor = rig.compressor();
      Context context = rig.context();
      OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
      const std::vector<float> e(numel);
      std::vector<float> e_next(numel + 2, 7.0f);
      Guarded whole(compressor.capacity_bytes());
      compressor.compress(g.view(), e, std::span(e_next).subspan(1, numel), whole.payload(),
                          context);
      EXPECT_EQ(e_next.front(), 7.0f);
      EXPECT_EQ(e_next.back(), 7.0f);
      const Region half{0, std::min(numel, 2 * kChunk)};
      Guarded part(compressor.slice_capacity_bytes(half));
      compressor.slice(whole.payload(), half, part.payload(), context);
      Guarded merged(compressor.slice_capacity_bytes(half));
      const ConstPayload inputs[] = {part.payload(), part.payload()};
      compressor.merge({inputs, half, 0.5f}, {}, merged.payload(), context);
      context.stream.wait();
      EXPECT_TRUE(whole.intact() && part.intact() && merged.intact());
    }
  }
}

TEST(CpuCompressorLaws, ThreadsDoNotChangeBytes) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    const std::vector<float> values = layered(70 * kChunk + 123, kSeed);
    const Sample one = make_sample(spec, DType::kFloat32, values, 1);
    for (const int threads : {2, 5}) {
      const Sample many = make_sample(spec, DType::kFloat32, values, threads);
      EXPECT_EQ(one.payload, many.payload);
      EXPECT_TRUE(all_equal(one.e_next, many.e_next));
      Rig rig(spec, {.numel = values.size()}, threads);
      EXPECT_TRUE(all_equal(one.decoded, rig.decompress({many.payload}).floats()));
    }
  }
}

/// Memory for `bytes` that begins `offset` bytes behind a line, between guards.
class Placed {
 public:
  Placed(size_t bytes, size_t offset)
      : memory_(bytes + 3 * kLine), begin_(kLine + offset), bytes_(bytes) {
    std::ranges::fill(memory_.bytes(), std::byte{0xA5});
  }
  std::span<std::byte> bytes() { return memory_.bytes().subspan(begin_, bytes_); }
  std::span<float> floats() {
    return {reinterpret_cast<float*>(bytes().data()), bytes_ / sizeof(float)};
  }
  bool guarded() {
    const auto whole = [](std::byte b) { return b == std::byte{0xA5}; };
    return std::ranges::all_of(memory_.bytes().first(begin_), whole) &&
           std::ranges::all_of(memory_.bytes().subspan(begin_ + bytes_), whole);
  }

 private:
  static constexpr size_t kLine = 64;
  Buffer memory_;
  size_t begin_, bytes_;
};

/// e_next, payload and mean of one gradient, in buffers that begin `offset` bytes behind a line.
std::vector<std::byte> bytes_on(cpu::Isa path, const std::string& spec,
                                const std::vector<float>& g, const std::vector<float>& e,
                                size_t offset = 0) {
  const cpu::IsaLimit limit(path);
  Rig rig(spec, {.numel = g.size(), .seed = kSeed});
  Context context = rig.context();
  Placed e_next(g.size() * 4, offset);
  Placed payload(rig.compressor().capacity_bytes(), offset);
  Placed mean(g.size() * 4, offset);
  const ConstPayload parts[] = {payload.bytes(), payload.bytes()};
  rig.compressor().compress(view_of(std::span(g)), e, e_next.floats(), payload.bytes(), context);
  rig.compressor().decompress(parts, 0.5f, view_of(mean.floats()), context);
  context.stream.wait();
  EXPECT_TRUE(e_next.guarded() && payload.guarded() && mean.guarded());
  std::vector<std::byte> all;
  const auto append = [&](std::span<const std::byte> bytes) {
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  append(e_next.bytes());
  append(payload.bytes().first(payload_bytes(payload.bytes())));
  append(mean.bytes());
  return all;
}

TEST(CpuCompressorLaws, ASliceWithRoomForSomeGivesTheOthersBack) {
  const size_t numel = 2 * kChunk + 300;
  constexpr size_t kRoom = 301;  // about half
  for (const char* values : {"fp32", "bf16", "int8", "int4", "2bit", "1bit", "qsgd:1"}) {
    for (const uint32_t step : {0, 1, 77, 12345}) {  // which ones find room turns with it
      SCOPED_TRACE(concat(values, " ", step));
      Rig rig(concat("topk:7%,", values), {.numel = numel, .seed = kLawSeed});
      rig.set_step(step);
      const auto payload = rig.compress(tensor_of(normal(numel, 3), DType::kFloat32), {}, {});
      const std::vector<float> all = rig.decompress({payload}).floats();
      Compressor& c = rig.compressor();
      Context context = rig.context();
      std::vector<float> left(numel);
      std::vector<std::byte> slice(c.capacity_for_entries({0, numel}, kRoom));
      c.slice_at_most({payload, {0, numel}, kRoom}, left, slice, context);
      context.stream.wait();
      slice.resize(payload_bytes(slice));
      const std::vector<float> sent = rig.decompress({slice}).floats();
      size_t kept = 0;
      for (size_t i = 0; i < numel; ++i) {
        ASSERT_TRUE(sent[i] == 0 || left[i] == 0) << i;
        ASSERT_EQ(sent[i] + left[i], all[i]) << i;
        kept += left[i] != 0 ? 1 : 0;
      }
      EXPECT_GT(kept, 10u);
    }
  }
}

TEST(CpuCompressorLaws, InstructionSetsDoNotChangeBytes) {
  for (const std::string& spec : sample_of_each(all_specs())) {
    // The last one is large enough for stores past the caches.
    for (const size_t numel : {0, 1, 255, 256, 257, 4095, 4096, 4097, 70001, (1 << 20) + 77}) {
      if (numel > 100000 && spec.find("block=") != std::string::npos) {
        continue;  // other blocks take one path
      }
      SCOPED_TRACE(concat(spec, " ", numel));
      const std::vector<float> g = heavy_tailed(numel, kSeed);
      const std::vector<float> e = normal(numel, kSeed + 1, 0.1f);
      const std::vector<std::byte> plain = bytes_on(cpu::Isa::kPlain, spec, g, e);
      for (const cpu::Isa path : isa_paths()) {
        EXPECT_TRUE(bytes_on(path, spec, g, e) == plain) << name_of(path);
      }
    }
  }
}

TEST(CpuCompressorLaws, AlignmentDoesNotChangeBytes) {
  for (const std::string& spec : sample_of_each(all_specs())) {
    const size_t numel = cpu::kStreamingNumel + 4 * kChunk - 3;
    const std::vector<float> g = heavy_tailed(numel, kSeed);
    const std::vector<float> e = normal(numel, kSeed + 1, 0.1f);
    const std::vector<std::byte> plain = bytes_on(cpu::Isa::kPlain, spec, g, e);
    for (const cpu::Isa path : isa_paths()) {
      for (const size_t offset : {4, 16, 60}) {
        EXPECT_TRUE(bytes_on(path, spec, g, e, offset) == plain)
            << spec << " " << name_of(path) << " " << offset;
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::testing
