// For gradwire.torch: which of its addresses a machine gives to ranks that another library brought
// together.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "gradwire/bindings/layers.h"
#include "gradwire/comm/internal/address.h"
#include "gradwire/comm/internal/interface.h"
#include "gradwire/comm/transport.h"

namespace gradwire::bindings {

namespace py = pybind11;

void bind_addresses(py::module_& module) {
  module.def("socket_interface_from_environment", &comm::socket_interface_from_environment,
             "The network interface that GRADWIRE_INTERFACE, GLOO_SOCKET_IFNAME or "
             "NCCL_SOCKET_IFNAME names, as make_transport() takes it; empty when none is set.");
  module.def(
      "address_offer",
      [](const std::string& interface, const std::string& towards) {
        const py::gil_scoped_release release;  // a name is asked for
        return address_offer(interface, towards.empty() ? std::string() : routed_address(towards));
      },
      py::arg("interface"), py::arg("towards"),
      "A line about where this rank is, for chosen_address().\n\nArgs:\n"
      "    interface: as of make_transport().\n"
      "    towards: a host that all ranks have reached; empty when there is none.\n\n"
      "Raises:\n    InvalidArgument: no interface here is as wished.");
  module.def("chosen_address", &chosen_address, py::arg("offers"), py::arg("rank"),
             py::arg("interface"), py::call_guard<py::gil_scoped_release>(),
             "The numeric address of this machine that all ranks reach.\n\nArgs:\n"
             "    offers: the lines of all ranks, in their order.\n\n"
             "Raises:\n    TransportError: no way leads to the others.");
}

}  // namespace gradwire::bindings
