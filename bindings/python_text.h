#pragma once
// Text between C++, where it is any bytes, and Python, where it is Unicode.

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

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

}  // namespace gradwire::bindings
