#pragma once
// Python arrays <-> views: the only file that knows both worlds. Nothing is copied; what cannot be
// viewed in place is refused with a message that says what to pass instead.

#include <pybind11/numpy.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/bindings/python_text.h"
#include "gradwire/kernels/core/tensor.h"

namespace gradwire::bindings {

namespace py = pybind11;

/// What an argument must be; `what` is its name in messages.
struct Expected {
  std::string_view what;
  std::optional<DType> dtype = DType::kFloat32;  ///< unset: any; uint16 is bfloat16 then
  std::optional<size_t> numel;                   ///< unset: any
};

/// Where the arrays of a call must lie and, on a GPU, the stream on which its work is enqueued.
struct Place {
  Device device{};
  void* stream = nullptr;  ///< a cudaStream_t, as cuda::wrap_stream() takes it
};

/// Type and number as DLPack has them; nothing for NumPy's arrays and what does not speak it.
std::optional<std::pair<int, int>> dlpack_device(py::handle object);

/// Of a Python array. @throws InvalidArgument for memory of neither the CPU nor a CUDA GPU.
Device device_of(py::handle object, std::string_view what);

/// Where `object` is, and the stream that `stream` names: an int, an object that has one, or None
/// for its library's current stream.
/// @throws InvalidArgument for a stream without a GPU, and where None is no stream that is known;
/// DeviceError where that GPU cannot be used, saying why.
Place place_of(py::handle object, std::string_view what, py::handle stream);
/// The same of a GPU that is known; `array`, which may be None, is for the current stream.
Place place_on(Device device, std::string_view what, py::handle stream, py::handle array);

/// A view of a Python object's memory, and what keeps that memory alive and in its place. Made and
/// destroyed with the GIL held; the view is used without it.
class Array {
 public:
  Array() = default;

  /// Memory the library reads. Any shape in C order.
  /// @throws InvalidArgument for another dtype or element count, another byte order, memory that is
  /// not contiguous or not aligned, elsewhere than in `place`, and for objects that are no NumPy
  /// array and support neither the buffer protocol nor DLPack.
  static Array input(py::handle object, const Expected& expected, const Place& place = {});
  /// Memory the library writes: also refused when it is read-only.
  static Array output(py::handle object, const Expected& expected, const Place& place = {});
  /// A payload to read: uint8 arrays, bytes, bytearray, memoryview.
  static Array input_bytes(py::handle object, std::string_view what, const Place& place = {});
  /// A uint8 buffer of at least `least_bytes` to write.
  static Array output_bytes(py::handle object, std::string_view what, size_t least_bytes,
                            const Place& place = {});

  /// The bytes of an array of any dtype in CPU memory, to read or to write.
  static Array input_memory(py::handle object, std::string_view what);
  static Array output_memory(py::handle object, std::string_view what);

  ConstTensorView view() const { return {data_, numel_, dtype_, device_}; }
  TensorView writable_view() const { return {data_, numel_, dtype_, device_}; }
  std::span<float> floats() const { return {static_cast<float*>(data_), numel_}; }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), size_bytes_}; }

 private:
  friend struct Layout;
  void* data_ = nullptr;
  size_t numel_ = 0;
  size_t size_bytes_ = 0;
  DType dtype_ = DType::kFloat32;
  Device device_{};
  py::object owner_;
  py::buffer_info buffer_;  // holds the export of objects that are not NumPy arrays
};

/// @throws InvalidArgument when the two share memory.
void check_disjoint(const Array& a, std::string_view a_name, const Array& b,
                    std::string_view b_name);

/// From "float32", numpy.float16, numpy.dtype("float32"), ml_dtypes.bfloat16, ...
/// @throws InvalidArgument listing the known dtypes.
DType parse_dtype(py::handle dtype);
DType parse_dtype_name(std::string_view name);

/// Of a name as "float32"; bfloat16 is a dtype only where ml_dtypes is installed, else uint16.
py::dtype numpy_dtype(const std::string& name);

/// An uninitialised array. bfloat16 is ml_dtypes.bfloat16 when that package is installed, else
/// uint16 with the same bits.
py::array new_array(DType dtype, size_t numel);

/// A view's elements without a copy, as an array of this shape; `owner` keeps them alive.
py::array array_over(TensorView view, const std::vector<size_t>& shape, py::handle owner);

/// A copy of a view's elements.
py::array copy_of(ConstTensorView view);

}  // namespace gradwire::bindings
