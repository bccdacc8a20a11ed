#pragma once
// An optimizer's state as Python has it: {parameter: {name: int}} and {parameter: {name: array}}.

#include <pybind11/numpy.h>
#include <pybind11/typing.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/bindings/device_array.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/optimizers/optimizer.h"
#include "gradwire/optimizers/saved_state.h"

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

/// Copies all state into {parameter: {name: int}} and {parameter: {name: array}} in CPU memory, or
/// views it where it is.
class StateReader : public StateVisitor {
 public:
  // With an owner of the memory the arrays are views of it. The counts of steps on a GPU are seen
  // as they are during the visit.
  explicit StateReader(py::object owner = {}, bool on_gpu = false)
      : owner_(std::move(owner)), on_gpu_(on_gpu) {}

  void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
    // Of two bytes: halves of numbers, which are no numbers.
    const char* const dtype = value.dtype == DType::kFloat32 ? "float32" : "uint16";
    put(tensors, parameter, name, array_of(dtype, value.data, value.numel, value.device));
  }
  void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> value,
             Device device) override {
    put(tensors, parameter, name, array_of("uint8", value.data(), value.size(), device));
  }
  void scalar(std::string_view parameter, std::string_view name, uint64_t& value) override {
    if (owner_ && !on_gpu_) {
      put(scalars, parameter, name,
          py::array(py::dtype::of<int64_t>(), py::array::ShapeContainer{}, &value, owner_));
    } else {
      put(scalars, parameter, name, py::int_(value));
    }
  }

  Scalars scalars;
  Tensors tensors;

 private:
  py::object array_of(const char* dtype, void* data, size_t numel, Device device) const {
    if (device.type == DeviceType::kCuda) {
      DeviceArray view(dtype, {numel}, {device}, data, owner_);
      return owner_ ? py::cast(std::move(view)) : py::object(view.to_numpy());
    }
    const py::array view(py::dtype(dtype), {static_cast<py::ssize_t>(numel)}, data,
                         owner_ ? owner_ : py::none());
    return owner_ ? py::object(view) : view.attr("copy")();
  }

  py::object owner_;
  const bool on_gpu_;
};

/// State in dicts of that form, of which codes are what has scales, "exp_avg.scale", beside it.
class DictState : public SavedState {
 public:
  DictState(const py::dict& scalars, const py::dict& tensors)
      : scalars_(scalars), tensors_(tensors) {}

  std::optional<ConstTensorView> tensor(std::string_view parameter,
                                        std::string_view name) override {
    const py::object saved = get(tensors_, "state", parameter, name);
    return keep(Array::input(saved, {name_of(parameter, name), std::nullopt, std::nullopt})).view();
  }
  std::optional<std::span<const std::byte>> bytes(std::string_view parameter,
                                                  std::string_view name) override {
    const py::str key{std::string(parameter)};
    if (!tensors_.contains(key) || !py::dict(tensors_[key]).contains(concat(name, ".scale"))) {
      return std::nullopt;
    }
    const py::object saved = get(tensors_, "state", parameter, name);
    return keep(Array::input_bytes(saved, name_of(parameter, name))).bytes();
  }
  std::optional<uint64_t> scalar(std::string_view parameter, std::string_view name) override {
    const std::string what = concat("scalars['", parameter, "']['", name, "']");
    const py::object saved = get(scalars_, "scalars", parameter, name);
    const bool counts =
        py::isinstance<py::int_>(saved) && saved >= py::int_(0) && saved <= py::int_(kMostSteps);
    check(counts, what, ": is ", std::string(py::repr(saved)),
          ", must be a whole number from 0 to 2^53");
    return saved.cast<uint64_t>();
  }

 private:
  const Array& keep(Array array) { return arrays_.emplace_back(std::move(array)); }

  const py::dict scalars_, tensors_;
  std::deque<Array> arrays_;
};

}  // namespace gradwire::bindings
