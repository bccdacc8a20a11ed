#include "gradwire/kernels/compress/internal/arguments.h"

#include <cmath>
#include <functional>

#include "gradwire/kernels/core/device_name.h"

namespace gradwire {
namespace {

void check_pointer(std::string_view name, std::string_view what, const void* data, size_t numel,
                   DType dtype) {
  if (numel == 0) {
    return;
  }
  check(data != nullptr, name, ": ", what, " data is a null pointer, must point at ", numel,
        " elements");
  const size_t alignment = size_of(dtype);
  const size_t off = reinterpret_cast<uintptr_t>(data) % alignment;
  check(off == 0, name, ": ", what, " address modulo ", alignment, " is ", off,
        ", must be 0 for ", to_string(dtype));
}

}  // namespace

void check_context(const Compressor& compressor, const Context& context) {
  const std::string_view name = compressor.spec().name;
  const Device expected = compressor.shape().device;
  const auto check_device = [&](std::string_view what, Device device) {
    const bool same =
        device.type == expected.type && (expected.type == DeviceType::kCpu || device == expected);
    check(same, name, ": the ", what, " is of ", name_of(device), ", must be of ",
          name_of(expected));
  };
  check_device("stream", context.stream.device());
  check_device("workspace", context.workspace.device());
}

void check_region(const Compressor& compressor, Region region) {
  const std::string_view name = compressor.spec().name;
  const size_t numel = compressor.shape().numel;
  check(region.begin <= region.end && region.end <= numel, name, ": region is [", region.begin,
        ", ", region.end, "), must lie within [0, ", numel, ")");
  check(region.begin % kChunk == 0 && (region.end % kChunk == 0 || region.end == numel), name,
        ": region is [", region.begin, ", ", region.end, "), must begin and end on multiples of ",
        kChunk);
}

void check_gradient(const Compressor& compressor, ConstGradient g) {
  const std::string_view name = compressor.spec().name;
  const CompressorShape& shape = compressor.shape();
  check(g.numel == shape.numel, name, ": gradient has ", g.numel, " elements, must have ",
        shape.numel);
  check(g.dtype == shape.dtype, name, ": gradient dtype is ", to_string(g.dtype), ", must be ",
        to_string(shape.dtype));
  const bool on_cpu = shape.device.type == DeviceType::kCpu;
  check(g.device.type == shape.device.type, name, ": gradient is in ", on_cpu ? "CUDA" : "CPU",
        " memory, must be on ", on_cpu ? "CPU" : "CUDA");
  check_pointer(name, "gradient", g.data, g.numel, g.dtype);
}

void check_residuals(const Compressor& compressor, ConstResidual e, ConstResidual e_next) {
  const std::string_view name = compressor.spec().name;
  const size_t numel = compressor.shape().numel;
  check_residual(compressor, "residual e", e);
  check(e_next.size() == e.size(), name, ": residual e_next has ", e_next.size(),
        " elements, must have ", e.size(), " as e has");
  check_residual(compressor, "residual e_next", e_next);
  const std::less<const float*> before;
  check(e.empty() ||
            !(before(e.data(), e_next.data() + numel) && before(e_next.data(), e.data() + numel)),
        name, ": e and e_next share memory, must be distinct buffers");
}

void check_residual(const Compressor& compressor, std::string_view what, ConstResidual e) {
  const std::string_view name = compressor.spec().name;
  const size_t numel = compressor.shape().numel;
  check(e.empty() || e.size() == numel, name, ": ", what, " has ", e.size(),
        " elements, must have ", numel, " or none");
  check_pointer(name, what, e.data(), e.size(), DType::kFloat32);
}

void check_velocity(const Compressor& compressor, std::string_view what, ConstResidual u) {
  const std::string_view name = compressor.spec().name;
  check(keeps_velocity(compressor.spec()), name, ": the spec is '", to_string(compressor.spec()),
        "', which keeps no velocity, expected one that does");
  check(u.size() == compressor.shape().numel, name, ": ", what, " has ", u.size(),
        " elements, must have ", compressor.shape().numel);
  check_residual(compressor, what, u);
}

void check_accumulated(const Compressor& compressor, ConstResidual x) {
  const std::string_view name = compressor.spec().name;
  check(compressor.spec().feedback.on, name,
        ": error feedback is off, must be on where gradients are accumulated into the residual");
  check(!keeps_velocity(compressor.spec()), name,
        ": keeps a velocity, so that gradients cannot be accumulated into the residual");
  check(compressor.spec().feedback.decay == 1, name, ": decay is ",
        compressor.spec().feedback.decay,
        ", must be 1 where gradients are accumulated into the residual, which cannot decay then");
  check(!compressor.spec().feedback.ef21, name,
        ": ef21 is on, must be off where gradients are accumulated into the residual");
  check(compressor.spec().feedback.residual == DType::kFloat32, name, ": residual is ",
        to_string(compressor.spec().feedback.residual),
        ", must be float32 where gradients are accumulated into the residual");
  check(compressor.spec().choice.rounds == 1, name, ": rounds is ", compressor.spec().choice.rounds,
        ", must be 1 where gradients are accumulated into the residual");
  check(x.size() == compressor.shape().numel, name, ": residual x has ", x.size(),
        " elements, must have ", compressor.shape().numel);
  check_residual(compressor, "residual x", x);
}

void check_room(const Compressor& compressor, ConstPayload out, size_t needed) {
  const std::string_view name = compressor.spec().name;
  check(out.size() >= needed, name, ": payload buffer has ", out.size(),
        " bytes, must have at least ", needed);
  check(out.data() != nullptr, name, ": payload buffer is a null pointer, must point at ", needed,
        " bytes");
}

void check_payloads(const Compressor& compressor, std::span<const ConstPayload> payloads) {
  for (size_t i = 0; i < payloads.size(); ++i) {
    check(payloads[i].data() != nullptr || payloads[i].empty(), compressor.spec().name,
          ": payload part ", i, " is a null pointer, must point at ", payloads[i].size(),
          " bytes");
  }
}

void check_scale(const Compressor& compressor, float scale) {
  check(std::isfinite(scale) && scale > 0, compressor.spec().name, ": scale is ", scale,
        ", must be positive and finite");
}

}  // namespace gradwire
