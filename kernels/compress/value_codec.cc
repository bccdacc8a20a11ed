// What values are called, and how wide they are.

#include <array>

#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

constexpr std::array<std::string_view, 11> kCodecNames = {
    "fp32", "fp16", "bf16", "int8", "int4", "raw", "2bit", "1bit", "e4m3", "e5m2", "natural"};

}  // namespace

int value_bits(ValueCodec codec, DType dtype) {
  switch (codec) {
    case ValueCodec::kFloat32:
      return 32;
    case ValueCodec::kFloat16:
    case ValueCodec::kBFloat16:
      return 16;
    case ValueCodec::kInt8:
    case ValueCodec::kE4M3:
    case ValueCodec::kE5M2:
    case ValueCodec::kPowerOfTwo:
      return 8;
    case ValueCodec::kInt4:
      return 4;
    case ValueCodec::kInt2:
      return 2;
    case ValueCodec::kSign:
      return 1;
    case ValueCodec::kRaw:
      return static_cast<int>(8 * size_of(dtype));
  }
  throw InvalidArgument(concat("value codec: code is ", static_cast<int>(codec), ", must be 0 to ",
                               kCodecNames.size() - 1));
}

std::string_view to_string(ValueCodec codec) {
  const auto code = static_cast<size_t>(codec);
  check(code < kCodecNames.size(), "value codec: code is ", code, ", must be 0 to ",
        kCodecNames.size() - 1);
  return kCodecNames[code];
}

CodeFormat code_format(ValueCodec codec) {
  return codec == ValueCodec::kE4M3         ? CodeFormat::kE4M3
         : codec == ValueCodec::kE5M2       ? CodeFormat::kE5M2
         : codec == ValueCodec::kPowerOfTwo ? CodeFormat::kPowerOfTwo
                                            : CodeFormat::kInteger;
}

ValueCodec codec_of_levels(uint32_t levels) {
  return levels == 1 ? ValueCodec::kInt2 : levels <= 7 ? ValueCodec::kInt4 : ValueCodec::kInt8;
}

}  // namespace gradwire
