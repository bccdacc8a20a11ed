#pragma once
// Text between C++, where it is any bytes, and Python, where it is Unicode. The headers of this folder
// include pybind11 through this one, so that all of its files convert text in the same way.

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>
#include <type_traits>

#include "gradwire/kernels/core/error.h"

namespace gradwire::bindings {

/// Text as a Python string; bytes that are no UTF-8, of a peer or cut off, become "\xff".
inline pybind11::str python_text(std::string_view text) {
  PyObject* const made =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (made == nullptr) {
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<pybind11::str>(made);
}

/// Whether python_text() leaves it as it is.
inline bool is_utf8(std::string_view text) {
  const auto made = pybind11::reinterpret_steal<pybind11::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr));
  if (!made) {
    PyErr_Clear();
  }
  return static_cast<bool>(made);
}

/// str(object) as UTF-8; what has none, such as half a surrogate pair, becomes "\udcff".
inline std::string utf8_of(pybind11::handle object) {
  const pybind11::str text(pybind11::reinterpret_borrow<pybind11::object>(object));
  PyObject* const made = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace");
  if (made == nullptr) {
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<pybind11::bytes>(made);
}

/// Text from Python that the library cannot take, quoted.
[[noreturn]] inline void refuse_text(pybind11::handle text) {
  constexpr size_t kMostShown = 80;
  const std::string quoted = utf8_of(pybind11::repr(text));
  throw InvalidArgument(concat(
      "text: ", quoted.substr(0, kMostShown), quoted.size() > kMostShown ? "..." : "",
      PyUnicode_Check(text.ptr()) ? " holds half of a surrogate pair, which UTF-8 has no bytes for"
                                  : " holds bytes that are no UTF-8",
      ", expected a str of whole characters"));
}

}  // namespace gradwire::bindings

namespace pybind11::detail {

/// pybind11's own takes any bytes, and answers text without UTF-8 by a list of all signatures.
template <class Text>
class utf8_caster : public string_caster<Text, std::is_same_v<Text, std::string_view>> {
 public:
  bool load(handle text, bool convert) {
    const bool loaded = utf8_caster::string_caster::load(text, convert);
    const bool is_str = text && PyUnicode_Check(text.ptr());
    if (loaded ? !is_str && !gradwire::bindings::is_utf8(this->value) : is_str) {
      gradwire::bindings::refuse_text(text);
    }
    return loaded;
  }
};

template <>
class type_caster<std::string> : public utf8_caster<std::string> {};
template <>
class type_caster<std::string_view> : public utf8_caster<std::string_view> {};

}  // namespace pybind11::detail
