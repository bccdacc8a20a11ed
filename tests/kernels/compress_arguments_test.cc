// What make_compressor() and the calls of a compressor refuse: shapes, lengths, addresses.

#include <gtest/gtest.h>

#include <type_traits>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/compress/internal/cuda_format.h"
#include "tests/kernels/compress_cases.h"

namespace gradwire::testing {
namespace {

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(MakeCompressor, RefusesBadShapes) {
  const CompressorSpec spec = parse_spec("int8");
  const auto error = [&](CompressorShape shape) {
    return message_of([&] { make_compressor(spec, std::move(shape)); });
  };
  EXPECT_EQ(error({.numel = size_t{1} << 32}),
            "compressor shape: numel is 4294967296, must be at most 2147483648");
  EXPECT_EQ(error({.numel = (size_t{1} << 31) + 1}),
            "compressor shape: numel is 2147483649, must be at most 2147483648");
  EXPECT_EQ(error({.numel = size_t{1} << 31}), "no error");
  EXPECT_EQ(error({.numel = 5, .rank = -1}), "compressor shape: rank is -1, must not be negative");
  EXPECT_EQ(error({.numel = 5, .segments = {{0, 0, 4}}}),
            "compressor shape: segments cover 4 elements, must cover all 5");
  EXPECT_EQ(error({.numel = 5, .world_size = 0}),
            "compressor shape: world_size is 0, must be positive");
  EXPECT_EQ(error({.numel = 5, .segments = {{0, 0, 4}, {1, 0, 2}}}),
            "compressor shape: segments cover more than 5 elements");
}

TEST(MakeCompressor, NeedsTheGpuThatTheShapeNames) {
  if (cuda::device_count() > 0) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  for (const CompressorRow& row : compressor_registry()) {
    EXPECT_THROW(make_compressor(parse_spec(row.example),
                                 {.numel = 5, .device = {DeviceType::kCuda, 0}}),
                 DeviceError);
  }
}

TEST(MakeCompressor, RefusesARowWithoutAFormForGpusByName) {
  CompressorRow row = find_compressor("int8");
  row.on_gpu = nullptr;
  try {
    make_cuda_format(row, parse_spec("int8"), {.numel = 5, .device = {DeviceType::kCuda, 0}});
    ADD_FAILURE() << "no error";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "int8: the shape's device is a GPU, but its row names no form for GPUs "
                               "(CompressorRow::on_gpu)");
  }
}

/// Arguments that do not fit are refused at the call, before anything is enqueued.
TEST(Arguments, AreCheckedAtTheCall) {
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    Rig rig(spec, {.numel = 5000});
    Compressor& c = rig.compressor();
    Context context = rig.context();
    OwnedTensor g = tensor_of(normal(5000, 1), DType::kFloat32);
    OwnedTensor half = tensor_of(normal(5000, 1), DType::kFloat16);
    std::vector<float> e(5000), e_next(5000), both(5001);
    std::vector<std::byte> out(c.capacity_bytes());
    const auto compress = [&](ConstGradient gradient, ConstResidual a, Residual b, Payload p) {
      return message_of([&] { c.compress(gradient, a, b, p, context); });
    };
    const std::string name = c.spec().name;
    EXPECT_EQ(compress(g.view().subview(0, 9), e, e_next, out),
              name + ": gradient has 9 elements, must have 5000");
    EXPECT_EQ(compress(half.view(), e, e_next, out),
              name + ": gradient dtype is float16, must be float32");
    EXPECT_EQ(compress(g.view(), std::span(e).first(7), e_next, out),
              name + ": residual e has 7 elements, must have 5000 or none");
    EXPECT_EQ(compress(g.view(), e, {}, out),
              name + ": residual e_next has 0 elements, must have 5000 as e has");
    EXPECT_EQ(compress(g.view(), e, e, out),
              name + ": e and e_next share memory, must be distinct buffers");
    EXPECT_EQ(compress(g.view(), std::span(both).first(5000), std::span(both).last(5000), out),
              name + ": e and e_next share memory, must be distinct buffers");
    EXPECT_NE(compress(g.view(), e, e_next, std::span(out).first(40)).find("must have at least"),
              std::string::npos);
    EXPECT_EQ(message_of([&] { c.slice(out, {1, 4096}, out, context); }),
              name + ": region is [1, 4096), must begin and end on multiples of 4096");
    EXPECT_EQ(message_of([&] { c.slice_capacity_bytes({0, 5001}); }),
              name + ": region is [0, 5001), must lie within [0, 5000)");
    EXPECT_EQ(message_of([&] { c.merge({{}, {0, 5000}, 0.0f}, {}, out, context); }),
              name + ": scale is 0, must be positive and finite");
    EXPECT_EQ(message_of([&] { c.merge({{}, {0, 5000}}, std::span(e).first(3), out, context); }),
              name + ": residual e_next has 3 elements, must have 5000 or none");
  }
}

/// What some compressors alone do is refused by the others, before anything is enqueued.
TEST(Arguments, VerbsOfOtherCompressorsAreRefusedByName) {
  static_assert(std::is_final_v<Compressor> && !std::is_polymorphic_v<Compressor>);
  std::vector<float> e_next(5000), counts(2);
  std::vector<std::byte> out(40000);
  const ConstPayload payload = out;
  bool finite = true;
  for (const std::string spec : {"int8", "chunktopk:64/4096", "randomk:1%", "powersgd:4"}) {
    SCOPED_TRACE(spec);
    Rig rig(spec, {.numel = 5000});
    Compressor& c = rig.compressor();
    Context context = rig.context();
    const std::string is =
        concat(": the compressor is '", to_string(c.spec()), "', in CPU memory, expected one ");
    EXPECT_EQ(message_of([&] { c.slice_at_most({payload, {0, 5000}, 9}, e_next, out, context); }),
              "slice_at_most" + is + "that chooses among all elements");
    EXPECT_EQ(
        message_of([&] { c.merge({{}, {0, 5000}, 1.0f, {}, 9}, e_next, out, context); }),
        c.spec().name + ": most_entries is 9, must be 0: it does not choose among all elements");
    EXPECT_EQ(message_of([&] { c.take_first({}, 1.0f, context); }),
              concat("take_first: the compressor is '", to_string(c.spec()),
                     "' with one round, expected one with two"));
    if (spec != "chunktopk:64/4096") {
      EXPECT_EQ(message_of([&] { c.count_entries(payload, counts, context); }),
                "count_entries" + is + "that sends entries");
    }
    if (spec == "powersgd:4") {
      EXPECT_EQ(message_of([&] { c.check_sum({}, 1.0f, finite, context); }),
                "check_sum" + is + "whose chunks decode alone");
    }
  }
}

TEST(Arguments, PointersThatAreNullOrMisalignedAreRefusedAtTheCall) {
  constexpr size_t kNumel = 5000;
  constexpr Region kAll{0, kNumel};
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    Rig rig(spec, {.numel = kNumel});
    Compressor& c = rig.compressor();
    Context context = rig.context();
    std::vector<float> g(kNumel), e(kNumel), e_next(kNumel), room(kNumel + 1);
    std::vector<std::byte> out(c.capacity_bytes());
    float* const none = nullptr;
    auto* const odd = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(room.data()) + 3);
    const Payload nowhere(static_cast<std::byte*>(nullptr), out.size());
    const ConstPayload parts[] = {out, nowhere};
    const auto compress = [&](const float* gradient, float* a, float* b, Payload p) {
      return message_of([&] {
        c.compress({gradient, kNumel, DType::kFloat32}, std::span(a, kNumel), std::span(b, kNumel),
                   p, context);
      });
    };
    const auto decompress = [&](float* sum, std::span<const ConstPayload> payloads) {
      return message_of([&] { c.decompress(payloads, 1.0f, {sum, kNumel}, context); });
    };
    const auto merge = [&](std::span<const ConstPayload> slices, float* a, Payload p) {
      return message_of([&] { c.merge({slices, kAll}, std::span(a, kNumel), p, context); });
    };
    const std::string name = c.spec().name;
    const std::string null_elements = " data is a null pointer, must point at 5000 elements";
    const std::string misaligned = " address modulo 4 is 3, must be 0 for float32";
    const std::string null_bytes =
        " is a null pointer, must point at " + std::to_string(out.size()) + " bytes";
    EXPECT_EQ(compress(none, e.data(), e_next.data(), out), name + ": gradient" + null_elements);
    EXPECT_EQ(compress(odd, e.data(), e_next.data(), out), name + ": gradient" + misaligned);
    EXPECT_EQ(compress(g.data(), none, e_next.data(), out), name + ": residual e" + null_elements);
    EXPECT_EQ(compress(g.data(), odd, e_next.data(), out), name + ": residual e" + misaligned);
    EXPECT_EQ(compress(g.data(), e.data(), none, out),
              name + ": residual e_next" + null_elements);
    EXPECT_EQ(compress(g.data(), e.data(), odd, out), name + ": residual e_next" + misaligned);
    EXPECT_EQ(compress(g.data(), e.data(), e_next.data(), nowhere),
              name + ": payload buffer" + null_bytes);
    EXPECT_EQ(decompress(none, {}), name + ": gradient" + null_elements);
    EXPECT_EQ(decompress(odd, {}), name + ": gradient" + misaligned);
    EXPECT_EQ(decompress(g.data(), parts), name + ": payload part 1" + null_bytes);
    EXPECT_EQ(message_of([&] { c.slice(nowhere, kAll, out, context); }),
              name + ": payload part 0" + null_bytes);
    EXPECT_EQ(message_of([&] { c.slice(out, kAll, nowhere, context); }),
              name + ": payload buffer" + null_bytes);
    EXPECT_EQ(merge(parts, e.data(), out), name + ": payload part 1" + null_bytes);
    EXPECT_EQ(merge({}, none, out), name + ": residual e_next" + null_elements);
    EXPECT_EQ(merge({}, odd, out), name + ": residual e_next" + misaligned);
    EXPECT_EQ(merge({}, e.data(), nowhere), name + ": payload buffer" + null_bytes);
  }
}

TEST(Arguments, HalvesMayLieAtAnyEvenAddress) {
  std::vector<uint16_t> memory(4097);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Rig rig("topk:1%", {.numel = 4096, .dtype = dtype});
    Compressor& c = rig.compressor();
    Context context = rig.context();
    std::vector<std::byte> out(c.capacity_bytes());
    auto* const first = reinterpret_cast<std::byte*>(memory.data());
    const auto compress = [&](std::byte* g) {
      return message_of([&] { c.compress({g, 4096, dtype}, {}, {}, out, context); });
    };
    EXPECT_EQ(compress(first), "no error");
    EXPECT_EQ(compress(first + 2), "no error");
    EXPECT_EQ(compress(first + 1),
              concat("topk: gradient address modulo 2 is 1, must be 0 for ", to_string(dtype)));
  }
}

}  // namespace
}  // namespace gradwire::testing
