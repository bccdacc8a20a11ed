#include "gradwire/kernels/ops/host_floats.h"

#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/ops/cast.h"

namespace gradwire {
namespace {

// The same elements in memory of the host.
struct OnHost {
  explicit OnHost(const ConstTensorView& like)
      : bytes(like.size_bytes()), view{bytes.data(), like.numel, like.dtype, {}} {}
  std::vector<std::byte> bytes;
  TensorView view;
};

}  // namespace

std::vector<float> read_floats(ConstTensorView from, Stream* stream) {
  std::vector<float> values(from.numel);
  if (from.device.type == DeviceType::kCpu) {
    cpu::widen(from, values);
    return values;
  }
  const OnHost copy(from);
  copy_bytes({static_cast<std::byte*>(copy.view.data), from.size_bytes()}, {},
             {static_cast<const std::byte*>(from.data), from.size_bytes()}, from.device, *stream);
  stream->wait();
  cpu::widen(copy.view, values);
  return values;
}

void write_floats(ConstResidual values, TensorView to, Stream* stream) {
  if (to.device.type == DeviceType::kCpu) {
    cpu::narrow(values, to);
    return;
  }
  const OnHost copy(to);
  cpu::narrow(values, copy.view);
  copy_bytes({static_cast<std::byte*>(to.data), to.size_bytes()}, to.device,
             {static_cast<const std::byte*>(copy.view.data), to.size_bytes()}, {}, *stream);
  stream->wait();
}

void add_floats(ConstResidual values, float factor, TensorView to) {
  dispatch(to.dtype, [&]<class T>() {
    const std::span<T> elements = to.as<T>();
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = from_float<T>(to_float(elements[i]) + factor * values[i]);
    }
  });
}

}  // namespace gradwire
