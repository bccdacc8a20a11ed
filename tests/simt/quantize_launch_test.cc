// What the launchers of quantize and dequantize refuse.

#include "tests/simt/records.h"

namespace gradwire::testing {
namespace {

TEST(QuantizeLaunchers, NameWhatIsWrong) {
  TestStream stream;
  const auto cpu_stream = make_inline_stream();
  DeviceArray<float> x(300), y(300), odd(301);
  DeviceArray<std::byte> records(cuda::quantized_bytes(300, 8, 256));
  DeviceValue<cuda::CallWords> words;
  DeviceValue<cuda::StepWords> step;
  cuda::CallWords* const call = words.data();
  const ConstTensorView g(x.data(), 300, DType::kFloat32, kEmulated);
  const cuda::QuantizeOutput good{.records = records, .call = call};
  const auto fails = [&](const char* what, const cuda::QuantizeInput& in,
                         const cuda::QuantizeOutput& out) {
    expect_refused(what, [&] { cuda::quantize(in, out, stream); });
  };
  const auto misaligned = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(odd.data()) + 2);
  fails("bits is 3, must be 8, 4 or 2", {.g = g, .bits = 3}, good);
  fails("bits is 4, must be 8 for floats", {.g = g, .bits = 4, .format = CodeFormat::kE4M3}, good);
  fails("format is 9, must be 0 to 3", {.g = g, .format = static_cast<CodeFormat>(9)}, good);
  fails("levels is 8, must be 0 to 7", {.g = g, .bits = 4, .levels = 8}, good);
  fails("rounding is to nearest", {.g = g, .levels = 8}, good);
  fails("rounding is to nearest", {.g = g, .format = CodeFormat::kPowerOfTwo}, good);
  fails("block is 24, must be a power of two from 8 to 4096", {.g = g, .block = 24}, good);
  fails("block is 4,", {.g = g, .block = 4}, good);
  fails("block is 8192,", {.g = g, .block = 8192}, good);
  fails("first is 256, must be a multiple of 4096", {.g = g, .first = 256}, good);
  fails("e has 5 elements, must have 300", {.g = g, .e = {std::span(x).first(5)}}, good);
  fails("e_next has 5 elements, must have 300", {.g = g},
        {.records = records, .e_next = std::span(y).first(5), .call = call});
  fails("put_back has 5 elements", {.g = g},
        {.records = records, .put_back = std::span(y).first(5), .call = call});
  fails("e has 7 elements in its second array, must have 300",
        {.g = g, .e = {x, std::span(y).first(7), &call->flags}}, good);
  fails("e's address modulo 4 is 2", {.g = g, .e = {std::span(misaligned, 300)}}, good);
  fails("e_next is a null pointer, must point at 300", {.g = g},
        {.records = records, .e_next = std::span<float>(static_cast<float*>(nullptr), 300), .call = call});
  fails("g is a null pointer", {.g = {nullptr, 300, DType::kFloat32, kEmulated}}, good);
  fails("g's address modulo 4 is 2", {.g = {misaligned, 300, DType::kFloat32, kEmulated}}, good);
  fails("g has 2147483649 elements, must have at most 2147483648",
        {.g = {x.data(), (size_t{1} << 31) + 1, DType::kFloat32, kEmulated}}, good);
  fails("g is in the memory of the CPU", {.g = {x.data(), 300, DType::kFloat32, {}}}, good);
  fails("device 1", {.g = {x.data(), 300, DType::kFloat32, {DeviceType::kCuda, 1}}}, good);
  fails("records has 10 bytes, must have at least 308", {.g = g},
        {.records = std::span(records).first(10), .call = call});
  fails("call is null", {.g = g}, {.records = records});
  fails("the seal's", {.g = g},
        {.records = records, .call = call, .seal = {.out = records.data(), .call = call}});
  fails("scale is 0, must be positive", {.g = g, .scale = 0}, good);
  fails("scale is 2, must be 1 where there is e", {.g = g, .e = {y}, .scale = 2}, good);
  const cuda::RoundingSource no_segments{{}, &call->flags, 0, 0};
  fails("no segments", {.g = g, .stochastic = &no_segments}, good);
  expect_refused("CPU stream", [&] { cuda::quantize({.g = g}, good, *cpu_stream); });

  const DeviceArray<cuda::DevicePart> table(1);
  const auto sum_fails = [&](const char* what, const cuda::QuantizedParts& parts, float scale,
                             const TensorView& sum) {
    expect_refused(what, [&] { cuda::dequantize(parts, scale, sum, stream); });
  };
  const TensorView sum(y.data(), 300, DType::kFloat32, kEmulated);
  const cuda::PartFaults faults{step.data(), nullptr};
  sum_fails("scale is 0", {.parts = table, .faults = faults}, 0, sum);
  sum_fails("scale is nan", {.parts = table, .faults = faults}, std::nanf(""), sum);
  sum_fails("bits is 16", {.parts = table, .bits = 16, .faults = faults}, 1, sum);
  sum_fails("format is 7", {.parts = table, .faults = faults, .format = static_cast<CodeFormat>(7)},
            1, sum);
  sum_fails("block is 0", {.parts = table, .block = 0, .faults = faults}, 1, sum);
  sum_fails("first is 8", {.parts = table, .first = 8, .faults = faults}, 1, sum);
  sum_fails("faults.step is null", {.parts = table}, 1, sum);
  sum_fails("sum is in the memory of the CPU", {.parts = table, .faults = faults}, 1,
            {y.data(), 300, DType::kFloat32, {}});
  sum_fails("parts is a null pointer",
            {.parts = std::span<const cuda::DevicePart>(static_cast<cuda::DevicePart*>(nullptr), 2),
             .faults = faults},
            1, sum);
}

}  // namespace
}  // namespace gradwire::testing
