#pragma once
// What an object says about its memory, whichever interface it speaks. For tensor.cc and dlpack.cc.

#include <pybind11/numpy.h>

#include <string>
#include <string_view>
#include <vector>

#include "gradwire/bindings/python_text.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/kernels/core/extents.h"

namespace gradwire::bindings {

struct Layout {
  void* data = nullptr;
  std::vector<py::ssize_t> shape;
  std::vector<py::ssize_t> strides;  ///< in bytes
  size_t itemsize = 0;
  std::string dtype;  ///< NumPy's name of it
  bool native = true;
  bool writable = false;
  Device device{};
  py::object owner;
  py::buffer_info buffer;

  size_t numel() const { return product_of(shape); }

  bool contiguous() const {
    if (numel() == 0) {
      return true;
    }
    py::ssize_t step = static_cast<py::ssize_t>(itemsize);
    for (size_t i = shape.size(); i-- > 0;) {
      if (shape[i] != 1 && strides[i] != step) {
        return false;
      }
      step *= shape[i];
    }
    return true;
  }

  Array take(DType type) {
    Array array;
    array.data_ = data;
    array.numel_ = numel();
    array.size_bytes_ = array.numel_ * itemsize;
    array.dtype_ = type;
    array.device_ = device;
    array.owner_ = std::move(owner);
    array.buffer_ = std::move(buffer);
    return array;
  }
};

/// Of an array in the memory of place.device, a GPU, by DLPack: the producer makes place.stream
/// wait for what it has still to write.
/// @throws InvalidArgument where it lies elsewhere, or its producer refuses.
Layout layout_on_gpu(py::handle object, std::string_view what, const Place& place);

}  // namespace gradwire::bindings
