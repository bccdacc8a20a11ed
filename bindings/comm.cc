// gradwire/comm for Python: transports and their verbs on arrays.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/bindings/area.h"
#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/python_calls.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/transport.h"
#include "gradwire/comm/verify.h"

namespace gradwire::bindings {
namespace {

using Handle = std::shared_ptr<BoundTransport>;
using Log = std::optional<py::typing::Callable<void(std::string)>>;

std::chrono::milliseconds milliseconds_of(double seconds, std::string_view what) {
  check(std::isfinite(seconds) && seconds > 0 && seconds < 1e6, what, ": is ", seconds,
        " seconds, must be above 0 and below 1e6");
  return std::chrono::milliseconds(
      std::max<int64_t>(1, static_cast<int64_t>(std::llround(seconds * 1000))));
}

Handle handle_of(std::unique_ptr<Transport> transport) {
  return std::make_shared<BoundTransport>(std::move(transport));
}

std::function<void(std::string_view)> log_to(const Log& log) {
  if (!log) {
    return {};
  }
  return [function = keep(*log)](std::string_view line) {
    try {
      call_python([&] { (*function)(python_text(line)); });
    } catch (const std::exception&) {
      // A logger that fails must not fail the call in which it was told something.
    }
  };
}

struct Tag {
  CallTag get() const { return {fingerprint, what}; }
  uint64_t fingerprint;
  std::string what;
};

Bytes all_gather(BoundTransport& self, py::handle data, std::optional<size_t> capacity,
                 uint64_t fingerprint, const std::string& what) {
  const auto transport = self.get();
  const Array mine = Array::input_memory(data, "data");
  const size_t length = mine.bytes().size();
  const size_t room = capacity_or(capacity, length);
  const Tag tag{fingerprint, what};
  if (self.device().type != DeviceType::kCpu) {  // beside what it carries
    const std::string_view words(reinterpret_cast<const char*>(mine.bytes().data()), length);
    std::vector<std::string> said;
    self.work(transport, [&](Context& context) {
      said = transport->gather_words(words, room, tag.get(), context);
    });
    return arrays_of(said);
  }
  Area all(static_cast<size_t>(self.world_size()), room);
  const Parts parts = all.parts();
  self.work(transport, [&](Context& context) {
    transport->all_gather(length, mine.bytes(), parts, tag.get(), context);
  });
  return all.arrays();
}

Bytes all_to_all(BoundTransport& self, const std::vector<py::object>& data,
                 std::optional<size_t> capacity, uint64_t fingerprint, const std::string& what) {
  const auto transport = self.get_for_arrays();
  const auto size = static_cast<size_t>(self.world_size());
  check(data.size() == size, "data: holds ", data.size(), " parts, must hold ", size,
        ", one for each rank");
  std::vector<Array> owners;
  size_t longest = 0;
  for (size_t r = 0; r < size; ++r) {
    owners.push_back(Array::input_memory(data[r], concat("data[", r, "]")));
    longest = std::max(longest, owners.back().bytes().size());
  }
  Area send(size, capacity_or(capacity, longest)), receive(size, send.stride);
  const Parts from = send.parts(), into = receive.parts();
  for (size_t r = 0; r < size; ++r) {
    const auto part = owners[r].bytes();
    send.lengths[r] = part.size();
    std::copy(part.begin(), part.end(), from.part(r).begin());
  }
  const Tag tag{fingerprint, what};
  self.work(transport,
            [&](Context& context) { transport->all_to_all(from, into, tag.get(), context); });
  return receive.arrays();
}

py::object reduce_scatter(BoundTransport& self, py::handle values, py::object out,
                          uint64_t fingerprint, const std::string& what) {
  const auto transport = self.get_for_arrays();
  const Array all = Array::input(values, {"values", DType::kFloat32, std::nullopt});
  const size_t numel = all.view().numel;
  const size_t shard = shard_begin(numel, self.world_size(), self.rank() + 1) -
                       shard_begin(numel, self.world_size(), self.rank());
  if (out.is_none()) {
    out = new_array(DType::kFloat32, shard);
  }
  const Array sum = Array::output(out, {"out", DType::kFloat32, shard});
  check_disjoint(sum, "out", all, "values");
  const Tag tag{fingerprint, what};
  self.work(transport, [&](Context& context) {
    transport->reduce_scatter(all.floats(), sum.floats(), tag.get(), context);
  });
  return out;
}

py::object all_reduce_sum(BoundTransport& self, py::object values, uint64_t fingerprint,
                          const std::string& what) {
  const auto transport = self.get_for_arrays();
  const Array sum = Array::output(values, {"values", DType::kFloat32, std::nullopt});
  const Tag tag{fingerprint, what};
  self.work(transport,
            [&](Context& context) { transport->all_reduce_sum(sum.floats(), tag.get(), context); });
  return values;
}

py::object broadcast(BoundTransport& self, py::object data, int root, uint64_t fingerprint,
                     const std::string& what) {
  const auto transport = self.get_for_arrays();
  const Array bytes = Array::output_memory(data, "data");
  const Tag tag{fingerprint, what};
  self.work(transport, [&](Context& context) {
    transport->broadcast(bytes.bytes(), root, tag.get(), context);
  });
  return data;
}

void barrier(BoundTransport& self, uint64_t fingerprint, const std::string& what) {
  const auto transport = self.get_for_arrays();
  const Tag tag{fingerprint, what};
  self.work(transport, [&](Context& context) { transport->barrier(tag.get(), context); });
}

void verify(BoundTransport& self, size_t largest_bytes, int calls_in_flight) {
  const auto transport = self.get_for_arrays();
  self.work(transport, [&](Context& context) {
    verify_transport(*transport,
                     {.largest_bytes = largest_bytes, .calls_in_flight = calls_in_flight}, context);
  });
}

// Where spans lie on a GPU it travels beside them.
void agree(BoundTransport& self, const std::string& what, const std::string& text) {
  const auto transport = self.get();
  self.work(transport, [&](Context& context) { transport->agree(what, text, context); });
}

Handle split(BoundTransport& self, int color) {
  const auto transport = self.get();
  std::unique_ptr<Transport> made;
  self.work(transport, [&](Context&) { made = transport->split(color); });
  return handle_of(std::move(made));
}

Handle rebuild(BoundTransport& self, std::optional<double> timeout, double silence) {
  const auto transport = self.get();
  RebuildOptions options;
  options.timeout = timeout ? milliseconds_of(*timeout, "timeout") : options.timeout;
  options.silence = milliseconds_of(silence, "silence");
  std::unique_ptr<Transport> made;
  self.work(transport, [&](Context&) { made = transport->rebuild(options); });
  return handle_of(std::move(made));
}

void abort(BoundTransport& self, const std::string& reason) {
  const auto transport = self.get_if_open();
  const py::gil_scoped_release release;
  if (transport) {
    transport->abort(reason);
  }
}

void close(BoundTransport& self) {
  // Its threads may need the GIL to end.
  const py::gil_scoped_release release;
  self.take().reset();
}

Handle joined(const std::string& name, int rank, int world_size, const std::string& store,
              const std::string& interface, double timeout, const std::string& job_secret,
              double bits_per_second, const std::string& plugin_path, const Log& log, int device,
              int max_ctas, const std::string& socket_interface, int local_world_size) {
  TransportOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = milliseconds_of(timeout, "timeout");
  options.pacing.bits_per_second = bits_per_second;
  options.store = store;
  options.network_interface = interface;
  options.socket_interface = socket_interface;
  check(local_world_size >= 0 && local_world_size <= world_size, "local_world_size: is ",
        local_world_size, ", must be from 0, for not known, to world_size, which is ", world_size);
  options.local_world_size = local_world_size;
  options.job_secret = job_secret;
  options.plugin_path = plugin_path;
  options.log = log_to(log);
  options.nccl = {.device_index = device, .max_ctas = max_ctas};
  const auto join = [name, options] { return make_transport(name, options); };
  if (name == "gloo") {  // whose ranks meet at sockets, in any thread
    return handle_of(made_interruptibly(join));
  }
  const py::gil_scoped_release release;
  return handle_of(join());
}

py::typing::List<BoundTransport> make_group(int world_size, double timeout,
                                            double bits_per_second) {
  TransportOptions options;
  options.timeout = milliseconds_of(timeout, "timeout");
  options.pacing.bits_per_second = bits_per_second;
  py::typing::List<BoundTransport> list;
  for (auto& transport : make_in_process_group(world_size, options)) {
    list.append(handle_of(std::move(transport)));
  }
  return list;
}

py::typing::Dict<py::str, py::object> from_environment() {
  const TransportOptions options = comm::from_environment();
  const auto text = [](std::string_view what, const std::string& value) {
    check(is_utf8(value), "environment: ", what, " holds bytes that are no UTF-8, expected UTF-8");
    return value;
  };
  py::typing::Dict<py::str, py::object> found;
  found["rank"] = options.rank;
  found["world_size"] = options.world_size;
  found["store"] = text("store", options.store);
  found["interface"] = text("interface", options.network_interface);
  found["socket_interface"] = text("socket_interface", options.socket_interface);
  found["local_world_size"] = options.local_world_size;
  found["job_secret"] = text("job_secret", options.job_secret);
  return found;
}

py::typing::Dict<py::str, int> counters(BoundTransport& self) {
  const TrafficCounters now = self.get()->counters();
  py::typing::Dict<py::str, int> dict;
  dict["bytes_sent"] = now.bytes_sent;
  dict["bytes_received"] = now.bytes_received;
  dict["frames_sent"] = now.frames_sent;
  return dict;
}

void exit(BoundTransport& self, const py::object& type, const py::object& error,
          const py::object&) {
  if (!type.is_none()) {
    abort(self, concat(utf8_of(type.attr("__name__")), ": ", utf8_of(error)));
  }
  close(self);
}

}  // namespace

void bind_comm(py::module_& module) {
  bind_python_calls(module);
  py::class_<BoundTransport, Handle> transport(
      module, "Transport",
      "Bytes between ranks: collective verbs over one group. All ranks call the same verbs in the "
      "same order.\n\n"
      "Every verb blocks with the GIL released. Every failure is a TransportError naming a rank; "
      "after it the group, and all that share its world, are finished. `fingerprint` and `what` "
      "name a call: ranks whose fingerprints differ are told before any payload is used, `what` "
      "goes into messages. One verb at a time: calls of other threads wait.",
      py::release_gil_before_calling_cpp_dtor());
  transport
      .def_property_readonly("name", &BoundTransport::name, "The registry row, or the carrier's.")
      .def_property_readonly("rank", &BoundTransport::rank, "This rank, from 0.")
      .def_property_readonly("world_size", &BoundTransport::world_size, "Ranks in the group.")
      .def_property_readonly(
          "old_ranks", &BoundTransport::old_ranks,
          "After rebuild(): rank r was rank old_ranks[r] of the group before. Else empty.")
      .def_property_readonly(
          "closed", [](BoundTransport& self) { return self.get_if_open() == nullptr; },
          "Whether close() was called.")
      .def_property_readonly(
          "device",
          [](const BoundTransport& self) {
            const Device device = self.device();
            return device.type == DeviceType::kCpu ? "cpu" : concat("cuda:", device.index);
          },
          "Of the memory it carries: 'cpu', or 'cuda:0' and so on, which no array can be in: then "
          "it is for a Reducer, and of the verbs all_gather() alone is there.")
      .def("all_gather", &all_gather, py::arg("data"), py::kw_only(),
           py::arg("capacity") = py::none(), py::arg("fingerprint") = 0, py::arg("what") = "",
           "Returns what each rank gave, a uint8 array per rank.\n\n"
           "Args:\n    data: a contiguous array of any dtype, or bytes.\n"
           "    capacity: bytes, the same on all ranks and at least len(data) on each; by default "
           "the length of data, which then is the same everywhere.\n\n"
           "Over a transport of GPU memory it is for a few KB between steps: bytes of the host, "
           "which "
           "travel beside it over the control group, by way of rank 0.")
      .def("all_to_all", &all_to_all, py::arg("data"), py::kw_only(),
           py::arg("capacity") = py::none(), py::arg("fingerprint") = 0, py::arg("what") = "",
           "Gives data[d] to rank d; returns what each rank gave to this one.\n\n"
           "Args:\n    data: world_size contiguous arrays or bytes; they are copied once.\n"
           "    capacity: bytes, the same on all ranks and at least the longest part of any; by "
           "default the longest of data.")
      .def("reduce_scatter", &reduce_scatter, py::arg("values"), py::kw_only(),
           py::arg("out") = py::none(), py::arg("fingerprint") = 0, py::arg("what") = "",
           "Returns this rank's shard of the sum over ranks of `values` (float32, equal length on "
           "all ranks), added in rank order.\n\n"
           "Shards are balanced to within one element, in order. `out` takes the shard.")
      .def("all_reduce_sum", &all_reduce_sum, py::arg("values"), py::kw_only(),
           py::arg("fingerprint") = 0, py::arg("what") = "",
           "Replaces `values` (float32, equal length on all ranks) by the sum over ranks, added in "
           "rank order: the same bits on every rank. Returns it.")
      .def("broadcast", &broadcast, py::arg("data"), py::arg("root") = 0, py::kw_only(),
           py::arg("fingerprint") = 0, py::arg("what") = "",
           "Replaces the bytes of `data` (a writable array of any dtype) by those of `root`'s. "
           "Returns it.")
      .def("barrier", &barrier, py::kw_only(), py::arg("fingerprint") = 0, py::arg("what") = "",
           "Returns when every rank has entered.")
      .def("agree", &agree, py::arg("what"), py::arg("text"),
           "Compares a text over ranks. Collective, also where GPU memory is carried.\n\n"
           "Raises:\n    InvalidArgument: on all ranks, naming the first that has another one "
           "than rank 0, and the first line in which it differs.")
      .def("split", &split, py::arg("color"),
           "A new transport over the ranks that pass the same color (from 0), ordered by rank. "
           "Collective.")
      .def("rebuild", &rebuild, py::arg("timeout") = py::none(), py::arg("silence") = 1.0,
           "A new group of the ranks that are left after a TransportError. Collective among them; "
           "see comm/transport.h. timeout and silence are seconds.\n\n"
           "Raises:\n    TransportError: too few ranks are left, named.\n"
           "    InvalidArgument: this transport or group cannot be rebuilt.")
      .def("verify", &verify, py::arg("largest_bytes") = VerifyOptions{}.largest_bytes,
           py::arg("calls_in_flight") = VerifyOptions{}.calls_in_flight,
           "Runs every verb with known bytes and compares what arrives. Collective.\n\n"
           "Raises:\n    TransportError: naming verb, size, call, rank and the first wrong byte.")
      .def("counters", &counters,
           "Since construction: 'bytes_sent' and 'bytes_received', frame headers included, and "
           "'frames_sent'.")
      .def("abort",  // an error's text is told whatever it holds
           [](BoundTransport& self, const py::str& reason) { abort(self, utf8_of(reason)); },
           py::arg("reason"),
           "Ends the group for everyone, from any thread: pending and later calls raise it. "
           "Nothing once closed.")
      .def("close", &close,
           "Leaves the group: waits for a call in progress, and until the others have what this "
           "rank has sent, for a silent one at most the timeout or a minute. A Reducer over it keeps "
           "the connections until it is gone as well. Idempotent.")
      .def("__enter__", [](const Handle& self) { return self; })
      .def("__exit__", &exit, py::arg("type"), py::arg("error"), py::arg("traceback"))
      .def("__repr__", [](const BoundTransport& self) {
        return concat("<gradwire.Transport ", self.name(), ", rank ", self.rank(), " of ",
                      self.world_size(), ">");
      });
  module.def(
      "make_transport", &joined, py::arg("name"), py::kw_only(), py::arg("rank") = 0,
      py::arg("world_size") = 1, py::arg("store") = "", py::arg("interface") = "",
      py::arg("timeout") = 30.0, py::arg("job_secret") = "", py::arg("bits_per_second") = 0.0,
      py::arg("plugin_path") = "", py::arg("log") = py::none(), py::arg("device") = 0,
      py::arg("max_ctas") = 0, py::arg("socket_interface") = "", py::arg("local_world_size") = 0,
      "Joins a group of processes: collective, blocking, at most `timeout` seconds.\n\n"
      "Args:\n    name: a row of gradwire.transports().\n"
      "    store: where ranks meet: 'file:DIR' (all ranks see it) or 'tcp:HOST:PORT' (rank 0 "
      "listens).\n"
      "    interface: network interface to bind: 'eth0', 'eth*' for all that begin so, several "
      "with commas between, '^docker*,lo' for all but these; by default the one on the way to the "
      "others.\n"
      "    timeout: seconds a peer may stay silent inside one call.\n"
      "    job_secret: ranks meet only where it is the same.\n"
      "    bits_per_second: paces the rank's link inside the transport; 0: as fast as it goes.\n"
      "    log: called with a line about what happened beside the calls, from any thread.\n"
      "    device, max_ctas: of 'nccl': this rank's GPU as CUDA numbers them, and the blocks NCCL "
      "may take of it, 0 for its choice.\n"
      "    socket_interface: taken where there is no interface, by 'gloo' and 'nccl'.\n"
      "    local_world_size: ranks on this machine, 0 where that is not known.\n\n"
      "Raises:\n    InvalidArgument: an unknown name lists the known ones.\n"
      "    TransportError: ranks did not appear in time.");
  module.def("make_in_process_group", &make_group, py::arg("world_size"), py::kw_only(),
             py::arg("timeout") = 30.0, py::arg("bits_per_second") = 0.0,
             "Transports of one process, a list by rank: each is for a thread of its own.");
  module.def("from_environment", &from_environment,
             "Keyword arguments of make_transport() from the variables of torchrun, mpirun, srun "
             "or gradwire's own (GRADWIRE_RANK, GRADWIRE_WORLD_SIZE, GRADWIRE_STORE, ...), which "
             "win.\n\nRaises:\n    InvalidArgument: naming the variable that is missing or "
             "malformed.");
}

}  // namespace gradwire::bindings
