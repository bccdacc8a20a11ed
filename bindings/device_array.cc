// Memory of a GPU for other libraries: DLPack, the other way round than dlpack.cc.

#include "gradwire/bindings/device_array.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <charconv>
#include <optional>
#include <utility>

#include "gradwire/bindings/dlpack.h"
#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/layout.h"
#include "gradwire/bindings/stream_order.h"
#include "gradwire/kernels/core/extents.h"

namespace gradwire::bindings {
namespace {

dlpack::DataType type_of(const std::string& dtype) {
  if (dtype == "uint8") return {dlpack::kUint, 8, 1};
  if (dtype == "uint16") return {dlpack::kUint, 16, 1};
  if (dtype == "bfloat16") return {dlpack::kBfloat, 16, 1};
  return {dlpack::kFloat, static_cast<uint8_t>(dtype == "float16" ? 16 : 32), 1};
}

void check_known(const std::string& dtype) {
  const bool known = dtype == "float32" || dtype == "float16" || dtype == "bfloat16" ||
                     dtype == "uint16" || dtype == "uint8";
  check(known, "dtype: is '", dtype,
        "', must be 'float32', 'float16', 'bfloat16', 'uint16' or 'uint8'");
}

py::typing::Tuple<py::int_, py::ellipsis> shape_tuple(const DeviceArray& array) {
  return py::tuple(py::cast(array.shape()));
}

/// What a consumer holds; its deleter may be called by any thread.
template <class T>
struct Exported {
  explicit Exported(py::object array, const DeviceArray& of) : keeper(std::move(array)) {
    shape.assign(of.shape().begin(), of.shape().end());
    managed.tensor = {.data = of.data(),
                      .device = {dlpack::kCuda, of.place().device.index},
                      .ndim = static_cast<int32_t>(shape.size()),
                      .dtype = type_of(of.dtype()),
                      .shape = shape.data(),
                      .strides = nullptr,
                      .byte_offset = 0};
    managed.context = this;
    managed.deleter = [](T* self) {
      if (Py_IsInitialized() != 0) {
        const py::gil_scoped_acquire gil;
        delete static_cast<Exported*>(self->context);
      }
    };
  }

  py::object keeper;
  std::vector<int64_t> shape;
  T managed{};
};

template <class T>
void delete_unused(PyObject* capsule) {
  const char* const name = PyCapsule_GetName(capsule);
  if (name == nullptr || std::string_view(name).starts_with("used_")) {
    return;  // whoever used it deletes it
  }
  auto* const managed = static_cast<T*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

template <class T>
py::object capsule_of(std::unique_ptr<Exported<T>> exported, const char* name) {
  PyObject* const made = PyCapsule_New(&exported->managed, name, &delete_unused<T>);
  if (made == nullptr) {
    throw py::error_already_set();
  }
  (void)exported.release();
  return py::reinterpret_steal<py::object>(made);
}

/// Makes the consumer's stream, as DLPack numbers them, wait for what was written.
void order(const Place& place, py::handle stream) {
  constexpr int64_t kDefault = 1, kNoOrder = -1;
  const int64_t consumer = stream.is_none() ? kDefault : stream.cast<int64_t>();
  check(consumer >= kNoOrder && consumer != 0, "stream: is ", consumer,
        ", must be -1, 1, 2 or a stream's handle, as DLPack has it");
  if (consumer == kNoOrder) {
    return;
  }
  const CurrentGpu current(place.device.index);
  const auto event = cuda::make_event(place.device.index);
  event->record(*cuda::wrap_stream(place.stream, place.device.index));
  event->hold(*cuda::wrap_stream(reinterpret_cast<void*>(consumer), place.device.index));
}

}  // namespace

Device parse_device(const std::string& text) {
  if (text == "cpu") {
    return {};
  }
  constexpr std::string_view kCuda = "cuda";
  Device device{DeviceType::kCuda, 0};
  std::string_view rest = text;
  bool known = rest.starts_with(kCuda);
  rest.remove_prefix(known ? kCuda.size() : 0);
  if (known && !rest.empty()) {
    const auto [end, code] =
        std::from_chars(rest.data() + 1, rest.data() + rest.size(), device.index);
    known = rest[0] == ':' && code == std::errc() && end == rest.data() + rest.size() &&
            device.index >= 0;
  }
  check(known, "device: is '", text, "', must be 'cpu', 'cuda' or 'cuda:N'");
  return device;
}

DeviceArray::DeviceArray(std::string dtype, std::vector<size_t> shape, const Place& place)
    : dtype_(std::move(dtype)), shape_(std::move(shape)), place_(place) {
  if (size_bytes() != 0) {
    const int index = place.device.index;
    const CurrentGpu current(index);
    const auto stream = cuda::wrap_stream(place.stream, index);
    check(!cuda::is_capturing(*stream),
          "stream: is captured into a graph, whose memory ends with it, must not be where a call "
          "makes an array: give it one (out=)");
    memory_ = {cuda::allocate_in_order(size_bytes(), index, stream->native_handle()),
               DeviceFree{index}};
    data_ = memory_.get();
  }
}

DeviceArray::DeviceArray(std::string dtype, std::vector<size_t> shape, const Place& place,
                         void* data, py::object owner)
    : dtype_(std::move(dtype)),
      shape_(std::move(shape)),
      place_(place),
      data_(data),
      owner_(std::move(owner)) {}

DeviceArray::~DeviceArray() {
  if (memory_ != nullptr) {  // what the GPU has still to run may need other threads of Python
    const py::gil_scoped_release release;
    memory_.reset();
  }
}

size_t DeviceArray::numel() const { return product_of(shape_); }

size_t DeviceArray::size_bytes() const { return numel() * type_of(dtype_).bits / 8; }

py::object DeviceArray::dlpack(py::object self, py::handle stream, py::handle max_version,
                               py::handle dl_device, py::handle copy) {
  const auto& array = self.cast<const DeviceArray&>();
  const std::pair<int, int> here{dlpack::kCuda, array.place_.device.index};
  check(dl_device.is_none() || dl_device.cast<std::pair<int, int>>() == here,
        "dl_device: is another device, must be where the array is: to_numpy() makes a copy");
  check(copy.is_none() || !copy.cast<bool>(), "copy: is True, must be None or False");
  order(array.place_, stream);
  const bool versioned =
      !max_version.is_none() &&
      py::tuple(py::reinterpret_borrow<py::object>(max_version))[0].cast<int>() >= 1;
  if (!versioned) {
    return capsule_of(std::make_unique<Exported<dlpack::Managed>>(std::move(self), array),
                      dlpack::kName);
  }
  auto exported = std::make_unique<Exported<dlpack::ManagedVersioned>>(std::move(self), array);
  exported->managed.version = {1, 0};
  return capsule_of(std::move(exported), dlpack::kNameVersioned);
}

py::array DeviceArray::to_numpy() const {
  py::array copy(numpy_dtype(dtype_), py::array::ShapeContainer(shape_.begin(), shape_.end()));
  if (numel() != 0) {
    const std::span<std::byte> to(static_cast<std::byte*>(copy.mutable_data()), size_bytes());
    const std::span<const std::byte> from(static_cast<const std::byte*>(data_), size_bytes());
    const py::gil_scoped_release release;
    const CurrentGpu current(place_.device.index);
    const auto stream = cuda::wrap_stream(place_.stream, place_.device.index);
    copy_bytes(to, {}, from, place_.device, *stream);
    stream->wait();
  }
  return copy;
}

void DeviceArray::assign(py::handle from) {
  // Of 16 bits by these: NumPy has no bfloat16, and uint16 holds halves of numbers.
  const py::array array = py::array::ensure(from);
  check(array && static_cast<size_t>(array.nbytes()) == size_bytes() &&
            (array.flags() & py::array::c_style) != 0,
        "from: must be a NumPy array in C order of ", size_bytes(), " bytes");
  if (numel() != 0) {
    const std::span<std::byte> to(static_cast<std::byte*>(data_), size_bytes());
    const std::span<const std::byte> source(static_cast<const std::byte*>(array.data()),
                                            size_bytes());
    const py::gil_scoped_release release;
    const CurrentGpu current(place_.device.index);
    const auto stream = cuda::wrap_stream(place_.stream, place_.device.index);
    copy_bytes(to, place_.device, source, {}, *stream);
    stream->wait();
  }
}

std::unique_ptr<DeviceArray> device_copy(py::handle source, std::string_view what,
                                         const Place& place) {
  const Array from = Array::input(source, {what, std::nullopt, std::nullopt}, place);
  const auto shape = source.attr("shape").cast<std::vector<size_t>>();
  auto copy =
      std::make_unique<DeviceArray>(std::string(to_string(from.view().dtype)), shape, place);
  const std::span<std::byte> to(static_cast<std::byte*>(copy->data()), copy->size_bytes());
  const CurrentGpu current(place.device.index);
  const auto stream = cuda::wrap_stream(place.stream, place.device.index);
  copy_bytes(to, place.device, from.bytes(), place.device, *stream);
  return copy;
}

void bind_device_array(py::module_& module) {
  py::class_<DeviceArray>(
      module, "DeviceArray",
      "Memory of a GPU that gradwire keeps or has made: states, payloads, residuals. Other "
      "libraries "
      "take it without a copy by DLPack: cupy.from_dlpack(a), torch.from_dlpack(a), "
      "jax.dlpack.from_dlpack(a).")
      .def(py::init([](const std::string& dtype, const std::vector<size_t>& shape,
                       const std::string& device) {
             const Device on = parse_device(device);
             check(on.type == DeviceType::kCuda, "device: is '", device,
                   "', must be 'cuda' or 'cuda:N'");
             check_known(dtype);
             cuda::check_device("DeviceArray", on.index);
             auto made = std::make_unique<DeviceArray>(dtype, shape, Place{on});
             const py::gil_scoped_release release;
             cuda::wrap_stream(nullptr, on.index)->wait();
             return made;
           }),
           py::arg("dtype"), py::arg("shape"), py::arg("device") = "cuda",
           "New memory of zeros, once it returns. dtype: 'float32', 'float16', 'bfloat16', "
           "'uint16' or "
           "'uint8'.")
      .def_property_readonly("shape", &shape_tuple, "As NumPy's.")
      .def_property_readonly("dtype", &DeviceArray::dtype, "NumPy's name of it, or 'bfloat16'.")
      .def_property_readonly("size", &DeviceArray::numel, "Elements.")
      .def_property_readonly("nbytes", &DeviceArray::size_bytes, "Bytes.")
      .def_property_readonly(
          "device", [](const DeviceArray& a) { return concat("cuda:", a.place().device.index); },
          "'cuda:' and the number of its GPU.")
      .def_property_readonly(
          "__gradwire_stream__",
          [](const DeviceArray& a) { return reinterpret_cast<uintptr_t>(a.place().stream); },
          "The handle of the stream on which it was last written.")
      .def("to_numpy", &DeviceArray::to_numpy,
           "A copy in CPU memory (bfloat16: ml_dtypes.bfloat16 when installed, else uint16); waits "
           "for the stream on which it was last written.")
      .def("assign", &DeviceArray::assign, py::arg("values"),
           "Copies a NumPy array of as many bytes, in C order, over its elements; waits, as "
           "to_numpy() does.")
      .def(
          "__dlpack__",
          [](py::object self, py::handle stream, py::handle max_version, py::handle dl_device,
             py::handle copy) {
            return DeviceArray::dlpack(std::move(self), stream, max_version, dl_device, copy);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none(),
          "A capsule, as the array API standard has it: the consumer's stream waits for what was "
          "written.")
      .def("__dlpack_device__",
           [](const DeviceArray& a) {
             return std::pair<int, int>(dlpack::kCuda, a.place().device.index);
           })
      .def("__repr__", [](const DeviceArray& a) {
        return concat("DeviceArray(", std::string(py::repr(py::tuple(py::cast(a.shape())))), ", '",
                      a.dtype(), "', 'cuda:", a.place().device.index, "')");
      });
  module.def(
      "device_copy",
      [](const py::object& source, const py::object& stream, const std::string& what) {
        check(device_of(source, what).type == DeviceType::kCuda, what,
              ": is in memory of the CPU, must be of a GPU, as the others are");
        return device_copy(source, what, place_of(source, what, stream));
      },
      py::arg("source"), py::arg("stream") = py::none(), py::arg("what") = "source",
      "A copy of an array of float32, float16 or bfloat16 on the same GPU, enqueued on the "
      "stream.");
}

}  // namespace gradwire::bindings
