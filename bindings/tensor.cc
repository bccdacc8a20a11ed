#include "gradwire/bindings/tensor.h"

#include <cstring>
#include <optional>
#include <sstream>
#include <string>

#include "gradwire/bindings/device_array.h"
#include "gradwire/bindings/dlpack.h"
#include "gradwire/bindings/layout.h"
#include "gradwire/bindings/python_text.h"

namespace gradwire::bindings {

namespace {

// NumPy's name of a buffer format; the format itself when it has none here.
std::string dtype_of_format(const std::string& format) {
  const std::string code =
      format.size() == 2 && std::strchr("@=<", format[0]) != nullptr ? format.substr(1) : format;
  if (code == "f") return "float32";
  if (code == "e") return "float16";
  if (code == "H") return "uint16";
  if (code == "B" || code == "c") return "uint8";
  return "'" + format + "'";
}

Layout layout_of(const py::array& array) {
  Layout layout;
  layout.owner = array;
  layout.data = const_cast<void*>(array.data());
  layout.shape.assign(array.shape(), array.shape() + array.ndim());
  layout.strides.assign(array.strides(), array.strides() + array.ndim());
  layout.itemsize = static_cast<size_t>(array.itemsize());
  layout.dtype = py::str(array.dtype().attr("name"));
  layout.native = py::bool_(array.dtype().attr("isnative"));
  layout.writable = array.writeable();
  return layout;
}

// Whether NumPy is told by DLPack that memory must not be written: from 2.1 on. Before, arrays that
// nobody may change, as JAX's, look like all others.
bool numpy_hears_of_read_only() {
  const auto numpy = py::module_::import("numpy");
  const auto version = numpy.attr("lib").attr("NumpyVersion")(numpy.attr("__version__"));
  return py::bool_(version.attr("__ge__")("2.1.0"));
}

// As an object's own __array__ gives it, for dtypes that neither the buffer protocol nor DLPack
// hands to NumPy (JAX's bfloat16); nothing where that is a copy or fails. To be read only: what
// writing to it does is not known.
std::optional<Layout> inspect_by_array(py::handle object) {
  if (!py::hasattr(object, "__array__")) {
    return std::nullopt;
  }
  try {
    const py::array array(py::module_::import("numpy").attr("asarray")(object));
    if (array.owndata()) {
      return std::nullopt;
    }
    Layout layout = layout_of(array);
    layout.writable = false;
    return layout;
  } catch (const py::error_already_set&) {
    return std::nullopt;  // the caller has the reason that DLPack gave
  }
}

// An array of another library, as NumPy views it.
Layout inspect_dlpack(py::handle object, std::string_view what) {
  if (const auto device = dlpack_device(object)) {
    check(device->first == dlpack::kCpu || device->first == dlpack::kPinned, what,
          ": is on a device (DLPack's type ", device->first, ", number ", device->second,
          "), must be in CPU memory here (cupy.asnumpy and jax.device_get make a copy)");
  }
  try {
    const auto numpy = py::module_::import("numpy");
    Layout layout = layout_of(py::array(numpy.attr("from_dlpack")(object)));
    layout.writable = layout.writable && numpy_hears_of_read_only();
    return layout;
  } catch (const py::error_already_set& error) {
    if (std::optional<Layout> layout = inspect_by_array(object)) {
      return std::move(*layout);
    }
    throw InvalidArgument(concat(what, ": is a ", Py_TYPE(object.ptr())->tp_name,
                                 ", which NumPy cannot view: ", utf8_of(error.value()),
                                 " (bfloat16 must be viewed as uint16)"));
  }
}

Layout inspect(py::handle object, std::string_view what, const Place& place) {
  if (place.device.type == DeviceType::kCuda) {
    return layout_on_gpu(object, what, place);
  }
  if (py::isinstance<py::array>(object)) {
    // Not by the buffer protocol: NumPy does not export ml_dtypes.bfloat16 that way.
    return layout_of(py::reinterpret_borrow<py::array>(object));
  }
  if (PyObject_CheckBuffer(object.ptr()) == 0) {
    check(py::hasattr(object, "__dlpack__"), what, ": is a ", Py_TYPE(object.ptr())->tp_name,
          ", must be a NumPy array or support the buffer protocol or DLPack");
    return inspect_dlpack(object, what);
  }
  Layout layout;
  layout.owner = py::reinterpret_borrow<py::object>(object);
  try {
    layout.buffer = py::reinterpret_borrow<py::buffer>(object).request();
  } catch (const py::error_already_set& error) {
    // JAX has the protocol for every array, but not for every dtype and device.
    check(py::hasattr(object, "__dlpack__"), what, ": is a ", Py_TYPE(object.ptr())->tp_name,
          ", whose memory cannot be viewed: ", utf8_of(error.value()));
    return inspect_dlpack(object, what);
  }
  const py::buffer_info& buffer = layout.buffer;
  layout.data = buffer.ptr;
  layout.shape = buffer.shape;
  layout.strides = buffer.strides;
  layout.itemsize = static_cast<size_t>(buffer.itemsize);
  layout.dtype = dtype_of_format(buffer.format);
  layout.writable = !buffer.readonly;
  return layout;
}

// The checks every array passes; `dtype` is what messages ask for.
void check_memory(const Layout& layout, std::string_view what) {
  check(layout.native, what, ": byte order is not this machine's, must be");
  check(layout.contiguous(), what,
        ": is not contiguous, must be in C order (numpy.ascontiguousarray makes a copy that is)");
  check(layout.numel() == 0 || reinterpret_cast<uintptr_t>(layout.data) % layout.itemsize == 0,
        what, ": address is not a multiple of ", layout.itemsize, ", must be aligned");
}

// The dtype that NumPy's name is taken for.
DType dtype_of(const Layout& layout, const Expected& expected) {
  for (const DType known : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const bool wanted = expected.dtype.value_or(known) == known;
    const bool bits = known == DType::kBFloat16 && layout.dtype == "uint16";
    if (wanted && (bits || layout.dtype == to_string(known))) {
      return known;
    }
  }
  const std::string_view wanted =
      expected.dtype ? to_string(*expected.dtype) : "float32, float16 or bfloat16";
  const bool bits = expected.dtype.value_or(DType::kBFloat16) == DType::kBFloat16;
  throw InvalidArgument(concat(expected.what, ": dtype is ", layout.dtype, ", must be ", wanted,
                               bits ? " (ml_dtypes) or uint16 holding its bits" : ""));
}

Layout inspect_elements(py::handle object, const Expected& expected, const Place& place,
                        DType& dtype) {
  Layout layout = inspect(object, expected.what, place);
  dtype = dtype_of(layout, expected);
  check_memory(layout, expected.what);
  check(!expected.numel || layout.numel() == *expected.numel, expected.what, ": has ",
        layout.numel(), " elements, must have ", expected.numel.value_or(0));
  return layout;
}

Layout inspect_bytes(py::handle object, std::string_view what, const Place& place) {
  Layout layout = inspect(object, what, place);
  check(layout.dtype == "uint8", what, ": dtype is ", layout.dtype, ", must be uint8");
  check_memory(layout, what);
  return layout;
}

void check_writable(const Layout& layout, std::string_view what) {
  check(layout.writable, what, ": is read-only, must be writable");
}

// Who reads gradwire's own arrays next is to wait for this stream.
void note_writing(py::handle object, const Place& place) {
  if (place.device.type == DeviceType::kCuda && py::isinstance<DeviceArray>(object)) {
    object.cast<DeviceArray&>().written_on(place.stream);
  }
}

}  // namespace

Array Array::input(py::handle object, const Expected& expected, const Place& place) {
  DType dtype{};
  Layout layout = inspect_elements(object, expected, place, dtype);
  return layout.take(dtype);
}

Array Array::output(py::handle object, const Expected& expected, const Place& place) {
  DType dtype{};
  Layout layout = inspect_elements(object, expected, place, dtype);
  check_writable(layout, expected.what);
  note_writing(object, place);
  return layout.take(dtype);
}

Array Array::input_bytes(py::handle object, std::string_view what, const Place& place) {
  return inspect_bytes(object, what, place).take(DType::kFloat32);
}

Array Array::output_bytes(py::handle object, std::string_view what, size_t least_bytes,
                          const Place& place) {
  Layout layout = inspect_bytes(object, what, place);
  check_writable(layout, what);
  check(layout.numel() >= least_bytes, what, ": has ", layout.numel(),
        " bytes, must have at least ", least_bytes);
  note_writing(object, place);
  return layout.take(DType::kFloat32);
}

Array Array::input_memory(py::handle object, std::string_view what) {
  Layout layout = inspect(object, what, {});
  check_memory(layout, what);
  return layout.take(DType::kFloat32);
}

Array Array::output_memory(py::handle object, std::string_view what) {
  Layout layout = inspect(object, what, {});
  check_memory(layout, what);
  check_writable(layout, what);
  return layout.take(DType::kFloat32);
}

void check_disjoint(const Array& a, std::string_view a_name, const Array& b,
                    std::string_view b_name) {
  const std::span<std::byte> left = a.bytes(), right = b.bytes();
  const bool apart = left.empty() || right.empty() || left.data() + left.size() <= right.data() ||
                     right.data() + right.size() <= left.data();
  check(apart, a_name, ": shares memory with ", b_name, ", must be a buffer of its own");
}

DType parse_dtype(py::handle dtype) {
  const auto given = py::reinterpret_borrow<py::object>(dtype);
  return parse_dtype_name(utf8_of(
      py::isinstance<py::str>(given) ? given : py::object(py::dtype::from_args(given).attr("name"))));
}

DType parse_dtype_name(std::string_view name) {
  for (const DType known : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (name == to_string(known)) {
      return known;
    }
  }
  throw InvalidArgument(
      concat("dtype: unknown name '", name, "', known: float32, float16, bfloat16"));
}

py::dtype numpy_dtype(const std::string& name) {
  if (name != to_string(DType::kBFloat16)) {
    return py::dtype(name);
  }
  const auto find_spec = py::module_::import("importlib.util").attr("find_spec");
  return find_spec("ml_dtypes").is_none()
             ? py::dtype::of<uint16_t>()
             : py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
}

namespace {

py::dtype dtype_object(DType dtype) { return numpy_dtype(std::string(to_string(dtype))); }

}  // namespace

py::array new_array(DType dtype, size_t numel) {
  return py::array(dtype_object(dtype), py::array::ShapeContainer{static_cast<py::ssize_t>(numel)});
}

py::array array_over(TensorView view, const std::vector<size_t>& shape, py::handle owner) {
  return py::array(dtype_object(view.dtype), py::array::ShapeContainer(shape.begin(), shape.end()),
                   view.data, owner);
}

py::array copy_of(ConstTensorView view) {
  py::array copy = new_array(view.dtype, view.numel);
  if (view.numel != 0) {
    std::memcpy(copy.mutable_data(), view.data, view.size_bytes());
  }
  return copy;
}

}  // namespace gradwire::bindings
