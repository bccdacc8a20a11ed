// Arrays in the memory of GPUs, as DLPack hands them over.

#include "gradwire/bindings/dlpack.h"

#include <memory>
#include <string>

#include "gradwire/bindings/layout.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/core/external_stream.h"

namespace gradwire::bindings {
namespace {

constexpr uintptr_t kLegacyStream = 1;  // of DLPack as of CUDA; 0 is ambiguous there

/// What the producer is asked to make wait.
uintptr_t stream_for(const Place& place) {
  return place.stream == nullptr ? kLegacyStream : reinterpret_cast<uintptr_t>(place.stream);
}

py::object export_of(py::handle object, std::string_view what, const Place& place) {
  const auto refuse = [&](const py::error_already_set& error) {
    return InvalidArgument(
        concat(what, ": is a ", Py_TYPE(object.ptr())->tp_name, " on ", name_of(place.device),
               ", which does not hand out its memory: ", utf8_of(error.value())));
  };
  const py::object call = object.attr("__dlpack__");
  try {
    return call(py::arg("stream") = stream_for(place),
                py::arg("max_version") = py::make_tuple(1, 0));
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) {
      throw refuse(error);
    }
  }
  try {  // producers from before version 1.0 have no max_version
    return call(py::arg("stream") = stream_for(place));
  } catch (const py::error_already_set& error) {
    throw refuse(error);
  }
}

template <class T>
void delete_managed(void* pointer) {
  auto* const managed = static_cast<T*>(pointer);
  if (managed->deleter != nullptr) {
    managed->deleter(managed);
  }
}

/// Takes the tensor out of its capsule: what is returned gives it back at its end.
template <class T>
py::object take_over(const py::object& capsule, const char* name, const char* used_name, T*& to) {
  to = static_cast<T*>(PyCapsule_GetPointer(capsule.ptr(), name));
  py::capsule keeper(to, &delete_managed<T>);
  if (PyCapsule_SetName(capsule.ptr(), used_name) != 0) {
    throw py::error_already_set();
  }
  return keeper;
}

std::string dtype_name(const dlpack::DataType& type) {
  const std::string bits = std::to_string(type.bits);
  if (type.lanes == 1) {
    switch (type.code) {
      case dlpack::kInt:
        return "int" + bits;
      case dlpack::kUint:
        return "uint" + bits;
      case dlpack::kFloat:
        return "float" + bits;
      case dlpack::kBfloat:
        return "bfloat" + bits;
      case dlpack::kComplex:
        return "complex" + bits;
      case dlpack::kBool:
        return "bool";
      default:
        break;
    }
  }
  return concat("DLPack's type ", static_cast<int>(type.code), " of ", bits, " bits and ",
                type.lanes, " lanes");
}

/// What capsules from before version 1.0 do not say, and others may forget: libraries whose arrays
/// nobody may change say it here.
bool is_read_only(py::handle object) {
  const char* const name = "__cuda_array_interface__";
  if (!py::hasattr(object, name)) {
    return false;
  }
  const py::dict interface = object.attr(name);
  return py::bool_(py::tuple(interface["data"])[1]);
}

void take_tensor(const dlpack::Tensor& tensor, Layout& layout) {
  layout.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  layout.itemsize = size_t{tensor.dtype.bits} * tensor.dtype.lanes / 8;
  layout.dtype = dtype_name(tensor.dtype);
  layout.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  layout.strides.resize(layout.shape.size());
  const auto itemsize = static_cast<py::ssize_t>(layout.itemsize);
  py::ssize_t step = itemsize;
  for (size_t i = layout.shape.size(); i-- > 0;) {
    layout.strides[i] = tensor.strides != nullptr ? tensor.strides[i] * itemsize : step;
    step *= layout.shape[i];
  }
}

}  // namespace

std::optional<std::pair<int, int>> dlpack_device(py::handle object) {
  if (py::isinstance<py::array>(object) || !py::hasattr(object, "__dlpack_device__")) {
    return std::nullopt;
  }
  return object.attr("__dlpack_device__")().cast<std::pair<int, int>>();
}

Device device_of(py::handle object, std::string_view what) {
  const auto device = dlpack_device(object);
  if (!device || device->first == dlpack::kCpu || device->first == dlpack::kPinned) {
    return {};
  }
  check(device->first == dlpack::kCuda, what, ": is on a device (DLPack's type ", device->first,
        ", number ", device->second, "), must be in memory of the CPU or of a CUDA GPU");
  return {DeviceType::kCuda, device->second};
}

Place place_of(py::handle object, std::string_view what, py::handle stream) {
  const Device device = device_of(object, what);
  if (device.type == DeviceType::kCpu) {
    check(stream.is_none(), "stream: is given, must be None: ", what, " is in memory of the CPU");
    return {};
  }
  return place_on(device, what, stream, object);
}

Place place_on(Device device, std::string_view what, py::handle stream, py::handle array) {
  cuda::check_device(concat(what, ": lies on ", name_of(device)), device.index);
  const auto handle = py::module_::import("gradwire.device_streams").attr("handle_of");
  return {device, reinterpret_cast<void*>(handle(stream, array, device.index).cast<uintptr_t>())};
}

Layout layout_on_gpu(py::handle object, std::string_view what, const Place& place) {
  const Device device = device_of(object, what);
  check(device == place.device, what, ": is in memory of ", name_of(device), ", must be of ",
        name_of(place.device), ", as the call's other arrays are");
  const py::object capsule = export_of(object, what, place);
  Layout layout;
  layout.device = device;
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kNameVersioned) != 0) {
    dlpack::ManagedVersioned* managed = nullptr;
    layout.owner = take_over(capsule, dlpack::kNameVersioned, dlpack::kUsedNameVersioned, managed);
    check(managed->version.major == 1, what, ": speaks DLPack ", managed->version.major, ".",
          managed->version.minor, ", must be 1 or before");
    layout.writable = (managed->flags & (dlpack::kReadOnly | dlpack::kIsCopied)) == 0 &&
                      !is_read_only(object);
    take_tensor(managed->tensor, layout);
  } else {
    check(PyCapsule_IsValid(capsule.ptr(), dlpack::kName) != 0, what, ": is a ",
          Py_TYPE(object.ptr())->tp_name, ", whose __dlpack__ gives no tensor");
    dlpack::Managed* managed = nullptr;
    layout.owner = take_over(capsule, dlpack::kName, dlpack::kUsedName, managed);
    layout.writable = !is_read_only(object);
    take_tensor(managed->tensor, layout);
  }
  return layout;
}

}  // namespace gradwire::bindings
