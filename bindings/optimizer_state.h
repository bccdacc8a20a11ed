#pragma once
// An optimizer's state as Python has it: {parameter: {name: int}} and {parameter: {name: array}}.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/bindings/tensor.h"
#include "gradwire/optimizers/optimizer.h"

namespace gradwire::bindings {

using Scalars = py::typing::Dict<py::str, py::typing::Dict<py::str, py::int_>>;
using Tensors = py::typing::Dict<py::str, py::typing::Dict<py::str, py::object>>;

/// dict[first][second] = value, of a dict of dicts.
inline void put(py::dict& dict, std::string_view first, std::string_view second,
                const py::object& value) {
  const py::str key{std::string(first)};
  if (!dict.contains(key)) {
    dict[key] = py::dict();
  }
  dict[key][py::str(std::string(second))] = value;
}

/// dict[first][second]. Throws InvalidArgument where it is missing; `name` is the dict's.
inline py::object get(const py::dict& dict, std::string_view name, std::string_view first,
                      std::string_view second) {
  const py::str key{std::string(first)}, piece{std::string(second)};
  check(dict.contains(key) && py::dict(dict[key]).contains(piece), name, "['", first, "']['",
        second, "']: is missing, must be there");
  return dict[key][piece];
}

/// Copies all state into {parameter: {name: int}} and {parameter: {name: array}}, or views it.
class StateReader : public StateVisitor {
 public:
  // With an owner of the memory the arrays are views of it.
  explicit StateReader(py::object owner = {}) : owner_(std::move(owner)) {}

  void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
    py::array array;
    if (value.dtype == DType::kFloat32) {
      array = array_over(value, {value.numel}, owner_ ? owner_ : py::none());
    } else {  // halves of numbers: no numbers
      array = py::array(py::dtype::of<uint16_t>(), {static_cast<py::ssize_t>(value.numel)},
                        value.data, owner_ ? owner_ : py::none());
    }
    put(tensors, parameter, name, owner_ ? array : array.attr("copy")());
  }
  void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> value,
             Device) override {
    py::array array(py::dtype::of<uint8_t>(), {static_cast<py::ssize_t>(value.size())},
                    value.data(), owner_ ? owner_ : py::none());
    put(tensors, parameter, name, owner_ ? array : array.attr("copy")());
  }
  void scalar(std::string_view parameter, std::string_view name, uint64_t& value) override {
    if (owner_) {
      put(scalars, parameter, name,
          py::array(py::dtype::of<int64_t>(), py::array::ShapeContainer{}, &value, owner_));
    } else {
      put(scalars, parameter, name, py::int_(value));
    }
  }

  Scalars scalars;
  Tensors tensors;

 private:
  py::object owner_;
};

/// Finds every piece of state in dicts of that form and writes it once all of them were found.
class StateWriter : public StateVisitor {
 public:
  StateWriter(const py::dict& scalars, const py::dict& tensors)
      : scalars_(scalars), tensors_(tensors) {}

  void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
    const std::string what = concat("state['", parameter, "']['", name, "']");
    const py::object saved = get(tensors_, "state", parameter, name);
    Array source = Array::input(saved, {what, value.dtype, value.numel});
    copies_.push_back({value, std::move(source)});
  }
  void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> value,
             Device) override {
    const std::string what = concat("state['", parameter, "']['", name, "']");
    Array source = Array::input_bytes(get(tensors_, "state", parameter, name), what);
    const size_t size = source.bytes().size();
    check(size == value.size(), what, ": has ", size, " bytes, must have ", value.size());
    codes_.push_back({value, std::move(source)});
  }
  void scalar(std::string_view parameter, std::string_view name, uint64_t& value) override {
    const py::object saved = get(scalars_, "scalars", parameter, name);
    const bool whole = py::isinstance<py::int_>(saved) && saved >= py::int_(0);
    check(whole, "scalars['", parameter, "']['", name, "']: is ", std::string(py::repr(saved)),
          ", must be a whole number from 0");
    values_.push_back({&value, saved.cast<uint64_t>()});
  }

  void write() {
    for (const auto& [destination, source] : copies_) {
      if (destination.numel != 0) {
        std::memcpy(destination.data, source.view().data, destination.size_bytes());
      }
    }
    for (const auto& [destination, source] : codes_) {
      std::ranges::copy(source.bytes(), destination.begin());
    }
    for (const auto& [destination, value] : values_) {
      *destination = value;
    }
  }

 private:
  const py::dict scalars_, tensors_;
  std::vector<std::pair<TensorView, Array>> copies_;
  std::vector<std::pair<std::span<std::byte>, Array>> codes_;
  std::vector<std::pair<uint64_t*, uint64_t>> values_;
};

}  // namespace gradwire::bindings
