#include "gradwire/kernels/compress/compressor.h"

#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

[[noreturn]] void refuse(const Compressor& compressor, std::string_view verb) {
  throw InvalidArgument(concat(verb, ": the compressor is '", to_string(compressor.spec()),
                               "', in ",
                               compressor.shape().device.type == DeviceType::kCpu ? "CPU" : "GPU",
                               " memory, expected one that selects, in CPU memory"));
}

[[noreturn]] void refuse_second(const Compressor& compressor, std::string_view verb) {
  throw InvalidArgument(concat(verb, ": the compressor is '", to_string(compressor.spec()),
                               "' with one round, expected one with two"));
}

}  // namespace

void Compressor::take_first(std::span<const ConstPayload>, float, Context&) {
  refuse_second(*this, "take_first");
}

void Compressor::check_first(ConstPayload, Context&) { refuse_second(*this, "check_first"); }

void Compressor::compress_second(ConstGradient, ConstResidual, Residual, Payload, Context&) {
  refuse_second(*this, "compress_second");
}

size_t Compressor::capacity_for_entries(Region region, size_t) const {
  return slice_capacity_bytes(region);
}

void Compressor::check_sum(std::span<const ConstPayload>, float, bool&, Context&) {
  throw InvalidArgument(concat("check_sum: the compressor is '", to_string(spec()), "', in ",
                               shape().device.type == DeviceType::kCpu ? "CPU" : "GPU",
                               " memory, expected one whose chunks decode alone, in CPU memory"));
}

void Compressor::look_for_large_rest(ConstPayload, bool&, Context&) {
  throw InvalidArgument(concat("look_for_large_rest: the compressor is '", to_string(spec()),
                               "', in GPU memory, expected CPU memory"));
}

void Compressor::count_entries(ConstPayload, std::span<float>, Context&) {
  refuse(*this, "count_entries");
}

void Compressor::slice_at_most(const SliceInput&, Residual, Payload, Context&) {
  refuse(*this, "slice_at_most");
}

}  // namespace gradwire
