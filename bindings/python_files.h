#pragma once
// Python objects that read or write bytes, as streams for use without the GIL.

#include <istream>
#include <memory>
#include <ostream>

#include "gradwire/bindings/python_text.h"

namespace gradwire::bindings {

/// Calls file.write(bytes), which returns how many it took, with long runs of bytes; flush() passes
/// on what is left, and does not flush the file. Made with the GIL held. What Python raises passes
/// through every call, which also throws InvalidArgument for another answer.
std::unique_ptr<std::ostream> write_to(pybind11::object file);

/// The same with file.read(most_bytes), which returns bytes, none of them at the end.
std::unique_ptr<std::istream> read_from(pybind11::object file);

}  // namespace gradwire::bindings
