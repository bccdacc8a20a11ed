#pragma once
// Calls into Python from threads that Python does not know.

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "gradwire/bindings/one_at_a_time.h"
#include "gradwire/bindings/python_text.h"

namespace gradwire::bindings {

/// Set when the interpreter begins to end: from then on a thread that asks for the GIL would not
/// return.
inline std::atomic<bool> python_is_ending{false};

/// Calls under way. The interpreter ends after them: one that is caught inside by its end would take
/// the process with it.
inline std::atomic<int> python_calls{0};

/// Counts a call, before it looks whether Python is ending.
class PythonCall {
 public:
  PythonCall() { ++python_calls; }
  ~PythonCall() { --python_calls; }
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;
};

/// Registers what sets it. Once, from the module.
void bind_python_calls(pybind11::module_& module);

/// A Python object that may be let go of without the GIL.
template <class Object>
std::shared_ptr<Object> keep(Object object) {
  return std::shared_ptr<Object>(new Object(std::move(object)), [](Object* kept) {
    const PythonCall call;
    if (python_is_ending) {
      return;  // the interpreter's memory goes with the process
    }
    const pybind11::gil_scoped_acquire gil;
    delete kept;
  });
}

/// Runs `body` with the GIL. @throws std::runtime_error with the text of what Python raised.
template <class Body>
void call_python(const Body& body) {
  const PythonCall call;
  if (python_is_ending) {
    throw std::runtime_error("the interpreter is ending");
  }
  const pybind11::gil_scoped_acquire gil;
  const Callback callback;
  std::string text;
  try {
    body();
    return;
  } catch (const pybind11::error_already_set& error) {
    // Its traceback holds the buffers of the call: it must be gone when this returns.
    text = utf8_of(pybind11::type::handle_of(error.value()).attr("__name__"));
    text += ": " + utf8_of(error.value());
  }
  throw std::runtime_error(text.substr(0, text.find('\n')));
}

}  // namespace gradwire::bindings
