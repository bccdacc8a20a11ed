#pragma once
// Python arrays <-> views: the only file that knows both worlds. Nothing is copied; what cannot be
// viewed in place is refused with a message that says what to pass instead.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string_view>
#include <vector>

#include "gradwire/kernels/core/tensor.h"

namespace gradwire::bindings {

namespace py = pybind11;

/// What an argument must be; `what` is its name in messages.
struct Expected {
  std::string_view what;
  std::optional<DType> dtype = DType::kFloat32;  ///< unset: any; uint16 is bfloat16 then
  std::optional<size_t> numel;                   ///< unset: any
};

/// A view of a Python object's memory, and what keeps that memory alive and in its place. Made and
/// destroyed with the GIL held; the view is used without it.
class Array {
 public:
  Array() = default;

  /// Memory the library reads. Any shape in C order.
  /// @throws InvalidArgument for another dtype or element count, another byte order, memory that is
  /// not contiguous or not aligned, on a device, and for objects that are no NumPy array and
  /// support neither the buffer protocol nor DLPack.
  static Array input(py::handle object, const Expected& expected);
  /// Memory the library writes: also refused when it is read-only.
  static Array output(py::handle object, const Expected& expected);
  /// A payload to read: uint8 arrays, bytes, bytearray, memoryview.
  static Array input_bytes(py::handle object, std::string_view what);
  /// A uint8 buffer of at least `least_bytes` to write.
  static Array output_bytes(py::handle object, std::string_view what, size_t least_bytes);

  /// The bytes of an array of any dtype, to read or to write.
  static Array input_memory(py::handle object, std::string_view what);
  static Array output_memory(py::handle object, std::string_view what);

  ConstTensorView view() const { return {data_, numel_, dtype_}; }
  TensorView writable_view() const { return {data_, numel_, dtype_, {}}; }
  std::span<float> floats() const { return {static_cast<float*>(data_), numel_}; }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), size_bytes_}; }

 private:
  friend struct Layout;
  void* data_ = nullptr;
  size_t numel_ = 0;
  size_t size_bytes_ = 0;
  DType dtype_ = DType::kFloat32;
  py::object owner_;
  py::buffer_info buffer_;  // holds the export of objects that are not NumPy arrays
};

/// @throws InvalidArgument when the two share memory.
void check_disjoint(const Array& a, std::string_view a_name, const Array& b,
                    std::string_view b_name);

/// From "float32", numpy.float16, numpy.dtype("float32"), ml_dtypes.bfloat16, ...
/// @throws InvalidArgument listing the known dtypes.
DType parse_dtype(py::handle dtype);

/// An uninitialised array. bfloat16 is ml_dtypes.bfloat16 when that package is installed, else
/// uint16 with the same bits.
py::array new_array(DType dtype, size_t numel);

/// A view's elements without a copy, as an array of this shape; `owner` keeps them alive.
py::array array_over(TensorView view, const std::vector<size_t>& shape, py::handle owner);

/// A copy of a view's elements.
py::array copy_of(ConstTensorView view);

}  // namespace gradwire::bindings
