#pragma once
// Non-owning views of flat, contiguous memory on one device.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire {

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// A view of `numel` contiguous elements. Whoever made the memory keeps it alive until the stream
/// the view was handed to has finished with it.
template <class Void>
struct BasicTensorView {
  Void* data = nullptr;
  size_t numel = 0;
  DType dtype = DType::kFloat32;
  Device device{};

  size_t size_bytes() const { return numel * size_of(dtype); }

  /// Elements [offset, offset + count).
  BasicTensorView subview(size_t offset, size_t count) const {
    check(offset <= numel && count <= numel - offset, "subview: elements [", offset, ", ",
          offset + count, ") of a view of ", numel);
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    return {static_cast<Byte*>(data) + offset * size_of(dtype), count, dtype, device};
  }

  /// The elements as `T`, which must be the view's dtype.
  template <class T>
  auto as() const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    check(dtype == kDTypeOf<T>, "tensor: dtype is ", to_string(dtype), ", expected ",
          to_string(kDTypeOf<T>));
    return std::span<Element>(static_cast<Element*>(data), numel);
  }
};

using TensorView = BasicTensorView<void>;

struct ConstTensorView : BasicTensorView<const void> {
  ConstTensorView() = default;
  ConstTensorView(const void* elements, size_t count, DType type, Device where = {})
      : BasicTensorView<const void>{elements, count, type, where} {}
  ConstTensorView(const BasicTensorView<const void>& v)  // NOLINT: implicit on purpose
      : BasicTensorView<const void>(v) {}
  ConstTensorView(const TensorView& v)  // NOLINT: implicit on purpose
      : BasicTensorView<const void>{v.data, v.numel, v.dtype, v.device} {}
};

/// The view of a span of float, float16 or bfloat16 in CPU memory.
template <class T>
TensorView view_of(std::span<T> elements)
  requires(!std::is_const_v<T>)
{
  return {elements.data(), elements.size(), kDTypeOf<T>, {}};
}
template <class T>
ConstTensorView view_of(std::span<const T> elements) {
  return {elements.data(), elements.size(), kDTypeOf<T>, {}};
}

using Gradient = TensorView;
using ConstGradient = ConstTensorView;
/// What error feedback keeps: float32, in unscaled gradient units. Empty: no feedback.
using Residual = std::span<float>;
using ConstResidual = std::span<const float>;
/// One rank's compressed group of a bucket; kernels/compress/WIRE_FORMAT.md gives the bytes.
using Payload = std::span<std::byte>;
using ConstPayload = std::span<const std::byte>;

}  // namespace gradwire
