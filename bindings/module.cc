// The module gradwire._core: exceptions, what was built, and the layers.

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <exception>
#include <stdexcept>

#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/planner.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/core/stream.h"

namespace gradwire::bindings {
namespace {

namespace py = pybind11;

// The classes live in gradwire/errors.py, where they inherit Python's own kinds.
struct ErrorTypes {
  py::object error, invalid_argument, non_finite, device, transport;
};

const ErrorTypes& error_types() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<ErrorTypes> storage;
  return storage
      .call_once_and_store_result([] {
        const auto errors = py::module_::import("gradwire.errors");
        return ErrorTypes{errors.attr("Error"), errors.attr("InvalidArgument"),
                          errors.attr("NonFiniteGradient"), errors.attr("DeviceError"),
                          errors.attr("TransportError")};
      })
      .get_stored();
}

// pybind11's own setting of an error fails for text that is no UTF-8.
void raise(const py::object& type, const std::exception& error) {
  PyErr_SetObject(type.ptr(), python_text(error.what()).ptr());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) {
      std::rethrow_exception(pointer);
    }
  } catch (const NonFiniteGradient& e) {
    raise(error_types().non_finite, e);
  } catch (const InvalidArgument& e) {
    raise(error_types().invalid_argument, e);
  } catch (const DeviceError& e) {
    raise(error_types().device, e);
  } catch (const TransportError& e) {
    const py::object& type = error_types().transport;
    PyErr_SetObject(type.ptr(), type(python_text(e.what()), e.peer()).ptr());
  } catch (const Error& e) {
    raise(error_types().error, e);
  } catch (const py::error_already_set&) {
    throw;
  } catch (const std::runtime_error& e) {
    if (is_utf8(e.what())) {
      throw;  // pybind11 knows its kind
    }
    raise(py::reinterpret_borrow<py::object>(PyExc_RuntimeError), e);
  }
}

const char* vector_level() {
  switch (cpu::isa()) {
    case cpu::Isa::kAvx512:
      return "avx512";
    case cpu::Isa::kAvx2:
      return "avx2";
    case cpu::Isa::kPlain:
      break;
  }
  return "plain";
}

py::typing::Dict<py::str, py::object> build_info() {
  py::dict features;
  features["cuda"] = static_cast<bool>(GRADWIRE_WITH_CUDA);
  features["gloo"] = static_cast<bool>(GRADWIRE_WITH_GLOO);
  features["mpi"] = static_cast<bool>(GRADWIRE_WITH_MPI);
  features["nccl"] = static_cast<bool>(GRADWIRE_WITH_NCCL);
  features["planner"] = static_cast<bool>(GRADWIRE_WITH_PLANNER);
  features["trainer"] = static_cast<bool>(GRADWIRE_WITH_BENCH);
  py::typing::Dict<py::str, py::object> info;
  info["version"] = GRADWIRE_VERSION;
  info["commit"] = GRADWIRE_COMMIT;
  info["compiler"] = GRADWIRE_COMPILER;
  info["vector_level"] = vector_level();
  info["features"] = features;
  info["cuda_devices"] = cuda::device_count();
  info["cuda_unavailable_reason"] = python_text(cuda::unavailable_reason());
  return info;
}

}  // namespace
}  // namespace gradwire::bindings

PYBIND11_MODULE(_core, module) {
  namespace bindings = gradwire::bindings;
  module.doc() = "The compiled part of gradwire. Use it through the package gradwire.";
  pybind11::register_local_exception_translator(&bindings::translate);
  module.def(
      "build_info", &bindings::build_info,
      "What this build holds: a dict with 'version', 'commit' (with '-dirty' where files differed; "
      "'' "
      "when built outside a checkout), 'compiler', 'features' (name -> bool), 'vector_level' (what "
      "the CPU's loops use here: 'avx512', 'avx2' or 'plain'), 'cuda_devices' (usable GPUs) and "
      "'cuda_unavailable_reason' (why that is 0, else '').");
  bindings::bind_device_array(module);
  bindings::bind_kernels(module);
  bindings::bind_comm(module);
  bindings::bind_carrier(module);
  bindings::bind_addresses(module);
  bindings::bind_plan(module);
  bindings::bind_reducer(module);
  bindings::bind_sharded_reducer(module);
  bindings::bind_optimizer_specs(module);
  bindings::bind_optimizers(module);  // which step from what a reducer hands on
  bindings::bind_schedules(module);
  bindings::bind_registries(module);
  bindings::bind_planner(module);
}
