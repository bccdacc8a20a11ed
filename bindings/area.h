#pragma once
// What verbs send and receive as arrays of NumPy.

#include <pybind11/numpy.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/bindings/python_text.h"
#include "gradwire/comm/transport.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/extents.h"

namespace gradwire::bindings {

namespace py = pybind11;

using Bytes = py::typing::List<py::array_t<uint8_t>>;

/// Parts of equal capacity, one after another, and their lengths.
struct Area {
  Area(size_t parts, size_t capacity)
      : stride(capacity), memory(bytes_of(parts, capacity)), lengths(parts) {}
  Parts parts() {
    return {
        {reinterpret_cast<std::byte*>(memory.mutable_data()), static_cast<size_t>(memory.size())},
        stride,
        lengths};
  }
  /// Each part at its length, without a copy.
  Bytes arrays() {
    Bytes list;
    for (size_t r = 0; r < lengths.size(); ++r) {
      list.append(py::array_t<uint8_t>(static_cast<py::ssize_t>(lengths[r]),
                                       memory.mutable_data() + r * stride, memory));
    }
    return list;
  }
  static py::ssize_t bytes_of(size_t parts, size_t capacity) {
    const size_t bytes = product_of(parts, capacity);
    check(bytes <= PTRDIFF_MAX, "capacity: is ", capacity, " bytes for each of ", parts,
          " ranks, more than any machine has");
    return static_cast<py::ssize_t>(bytes);
  }
  size_t stride;
  py::array_t<uint8_t> memory;
  std::vector<size_t> lengths;
};

/// @throws InvalidArgument where `longest` is more.
inline size_t capacity_or(const std::optional<size_t>& capacity, size_t longest) {
  check(capacity.value_or(longest) >= longest, "capacity: is ", capacity.value_or(0),
        " bytes, must be at least ", longest, ", the length of what is sent");
  return capacity.value_or(longest);
}

/// Copies.
inline Bytes arrays_of(const std::vector<std::string>& words) {
  Bytes list;
  for (const std::string& each : words) {
    list.append(py::array_t<uint8_t>(static_cast<py::ssize_t>(each.size()),
                                     reinterpret_cast<const uint8_t*>(each.data())));
  }
  return list;
}

}  // namespace gradwire::bindings
