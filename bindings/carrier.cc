// Somebody else's collectives, as a Python object with methods, for a transport to be carried by.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/python_calls.h"
#include "gradwire/bindings/transport.h"
#include "gradwire/comm/transport/carrier.h"

namespace gradwire::bindings {
namespace {

namespace py = pybind11;
using Object = std::shared_ptr<py::object>;

// Memory of a call as Python sees it, which nobody can see any more afterwards.
class Lent {
 public:
  explicit Lent(std::span<const std::byte> bytes)
      // Never written through where it is only to be read: that is the carrier's contract.
      : view_(py::memoryview::from_memory(
            const_cast<void*>(static_cast<const void*>(
                bytes.empty() ? "" : static_cast<const void*>(bytes.data()))),
            static_cast<py::ssize_t>(bytes.size()), /*readonly=*/false)) {}
  const py::memoryview& view() const { return view_; }

  // Python raises at its next use by whoever has kept it.
  void release() { view_.attr("release")(); }

 private:
  py::memoryview view_;
};

std::vector<size_t> list_of(std::span<const size_t> lengths) {
  return {lengths.begin(), lengths.end()};
}

Carrier carrier_of(const py::object& python) {
  Carrier carrier;
  carrier.rank = python.attr("rank").cast<int>();
  carrier.world_size = python.attr("world_size").cast<int>();
  const Object object = keep(py::object(python));
  carrier.all_gather = [object](std::span<const std::byte> mine, std::span<std::byte> all) {
    call_python([&] {
      Lent from(mine), into(all);
      object->attr("all_gather")(from.view(), into.view());
      from.release();
      into.release();
    });
  };
  carrier.all_to_all = [object](const Carrier::AllToAll& call) {
    call_python([&] {
      Lent from(call.send), into(call.receive);
      object->attr("all_to_all")(from.view(), list_of(call.send_lengths), into.view(),
                                 list_of(call.receive_lengths));
      from.release();
      into.release();
    });
  };
  carrier.broadcast = [object](std::span<std::byte> bytes, int root) {
    call_python([&] {
      Lent memory(bytes);
      object->attr("broadcast")(memory.view(), root);
      memory.release();
    });
  };
  carrier.split = [object](const std::vector<std::vector<int>>& groups) {
    Carrier made;
    call_python([&] { made = carrier_of(object->attr("split")(groups)); });
    return made;
  };
  carrier.interrupt = [object] { call_python([&] { object->attr("interrupt")(); }); };
  carrier.close = [object] { call_python([&] { object->attr("close")(); }); };
  return carrier;
}

// Transports want a name that stays.
std::string_view lasting(const std::string& name) {
  static std::set<std::string>* const names = new std::set<std::string>();  // under the GIL
  return *names->insert(name).first;
}

std::shared_ptr<BoundTransport> make(const std::string& name, const py::object& python,
                                     double timeout, const std::string& control_host) {
  check(timeout > 0 && timeout < 1e6, "timeout: is ", timeout,
        " seconds, must be above 0 and below 1e6");
  const std::string_view kept = lasting(name);
  Carrier carrier = carrier_of(python);
  CarrierOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000));
  options.control_host = control_host;
  const py::gil_scoped_release release;
  return std::make_shared<BoundTransport>(
      make_carrier_transport(kept, std::move(carrier), options));
}

// A carrier's call that is blocked ends at its own deadline; the end of the process does not wait
// for all of that.
constexpr std::chrono::seconds kLongestFarewell{10};

}  // namespace

void bind_python_calls(py::module_&) {
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    python_is_ending = true;
    const auto until = std::chrono::steady_clock::now() + kLongestFarewell;
    const py::gil_scoped_release release;  // those under way need it
    while (python_calls > 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }));
}

void bind_carrier(py::module_& module) {
  module.def(
      "make_carrier_transport", &make, py::arg("name"), py::arg("carrier"), py::kw_only(),
      py::arg("timeout") = 30.0, py::arg("control_host") = "127.0.0.1",
      "A transport over somebody else's collectives: see gradwire.Carrier for what `carrier` must "
      "have.\n\nArgs:\n    timeout: seconds after which the carrier's calls give up.\n"
      "    control_host: numeric address of this machine at which rank 0 listens for the others' "
      "control connections; read on rank 0.\n\n"
      "Raises:\n    TransportError: naming the ranks that did not come.");
}

}  // namespace gradwire::bindings
