// gradwire/kernels for Python: payloads and compressors.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "gradwire/bindings/compressor.h"
#include "gradwire/bindings/layers.h"

namespace gradwire::bindings {
namespace {

void bind_payload(py::module_& module) {
  module.def(
      "payload_info",
      [](const py::object& payload) -> py::typing::Dict<py::str, py::object> {
        const PayloadHeader header = read_header(Array::input_bytes(payload, "payload").bytes());
        py::typing::Dict<py::str, py::object> info;
        info["payload_bytes"] = header.bytes;
        info["numel"] = header.numel;
        info["first_element"] = static_cast<uint64_t>(header.first_chunk) * kChunk;
        info["spec_fingerprint"] = header.spec_fingerprint;
        info["finite"] = (header.flags & kFlagNonFinite) == 0;
        return info;
      },
      py::arg("payload"),
      R"(What a payload's header says: 'payload_bytes', 'numel', 'first_element',
'spec_fingerprint' and 'finite' (False: the gradient it was made from held NaN or infinity).

Raises:
    InvalidArgument: the bytes are no payload, or are cut short.)");
}

constexpr const char* kCompressorDoc =
    R"(Compresses the gradients of `numel` elements; never talks to the network.

Args:
    spec: what to do, e.g. 'topk:1%', 'int4', 'fp16' (see gradwire.compressors()).
    numel: elements of the gradient, below 2**32.
    dtype: of the gradient: 'float32', 'float16' or 'bfloat16', or a NumPy dtype.
    seed, rank: of stochastic rounding; ranks of one job pass the same seed.
    threads: of the loops; results have the same bits for any number.
    world_size: ranks whose payloads become one mean; dgc clips by it.
    shapes: of the parameters that follow one another in the gradient, as a plan's; their sizes add
        up to numel. None: one parameter, and no matrix. tensortopk chooses in each of them, blocktopk
        begins its blocks anew, powersgd sends factors of those with two dimensions and more (rows:
        the first), and stochastic rounding draws by parameter.

    device: where all arrays are and the work is done: 'cpu', 'cuda' (the first GPU) or 'cuda:1'.

Arrays are viewed in place, in C order and of any shape; the GIL is released during the work.

On a GPU calls are enqueued on their `stream` (see docs/gpu.md; None: the current one of the array's
library) and return at once. What is wrong with a payload or a gradient is kept there: commits change
nothing any more until check() has raised it. Payloads are whole buffers of capacity_bytes.

Raises:
    InvalidArgument: for a bad spec or shape; an unknown name lists the known ones.)";

constexpr const char* kTakeFirstDoc =
    R"(Between the two rounds of a step (rounds == 2): takes over scale * (sum of the first payloads),
which are what compress() wrote on every rank. All ranks pass the same ones; the next compress()
forgets them.

Args:
    payloads, scale: as for decompress().

Raises:
    InvalidArgument: a compressor of one round; a payload that does not belong here.
    NonFiniteGradient: a payload made from a gradient that held NaN or infinity.)";

constexpr const char* kCompressSecondDoc =
    R"(Writes the payload of the second round, behind take_first(): the one that decompress() is given.

Args:
    gradient, residual, next_residual, out: as for compress(), with the same gradient and residual.

Raises:
    InvalidArgument: a compressor of one round; before take_first().)";

constexpr const char* kCompressDoc =
    R"(Writes the payload of gradient + residual and returns it as a uint8 array.

Args:
    gradient: numel elements of the compressor's dtype.
    residual: the committed residual e, float32; together with next_residual or not at all.
    next_residual: float32, written so that gradient + e == D + next_residual, D being what the
        payload decodes to (decay * e where the spec has a decay, and the velocity for the gradient
        where it keeps one; with ef21 e - D == next_residual, and the gradient's estimate, the sum
        of all means so far, is the caller's to keep: see Feedback). Without residuals, what the payload leaves out is lost.
    out: uint8 buffer of at least capacity_bytes to write into; a new one by default.
    stream: on a GPU; there the two residuals are passed in the same order in every step, and which
        of them is the committed one is decided by commit().

Returns:
    A view of the first bytes of `out`: as many as the payload has. On a GPU `out`, by default a
    DeviceArray.

With rounds == 2 it is the payload of the first round, and next_residual means nothing yet: take_first()
and compress_second() come next.

A gradient that holds NaN or infinity gives a payload that says so (payload_info()['finite']):
decompress() refuses it on every rank, and commit() refuses to commit it.)";

constexpr const char* kAccumulatedDoc =
    R"(compress() for gradients that were added straight into the residual, in one buffer.

Args:
    values: numel float32 elements that hold gradient + residual; become the next residual.
    out: as for compress().

Returns:
    The payload that compress() of the same sum would write, as a view of the first bytes of `out`.

NOT transactional: the committed residual is gone, and restore(payload, values) gives gradient +
residual back, exactly for selection and nearest rounding, else to one rounding of float32. Values
that hold NaN or infinity stay as they are, and their payload says so.

Raises:
    InvalidArgument: a spec without error feedback, another dtype or size; values are unchanged.)";

constexpr const char* kRestoreDoc =
    R"(Adds what a payload decodes to back to `values` (numel elements, float32), in place: undoes
compress_accumulated() after an exchange that failed or a step that was skipped.

A payload made from NaN or infinity took nothing and gives nothing.

Raises:
    InvalidArgument: a payload that does not belong here, a spec without error feedback, another
        dtype or size; values are unchanged.)";

constexpr const char* kDecompressDoc =
    R"(Returns scale * (sum of the payloads), added in the order given in float32.

Args:
    payloads: one payload or a list of them (uint8 arrays, bytes, memoryview), each checked before
        it is used: payloads of several ranks, or slices that tile the gradient.
    scale: 1 / world_size for a mean.
    out: numel elements of the compressor's dtype to write into; a new array by default (bfloat16:
        ml_dtypes.bfloat16 when installed, else uint16).

Of powersgd what it returned last is what commit() makes the next step begin with: each rank calls it
with the payloads of all, in the same order, between compress() and commit().

Raises:
    InvalidArgument: a payload that does not belong here, naming which and why.
    NonFiniteGradient: a payload made from a gradient that held NaN or infinity; on the CPU also a
        sum that overflows float32 though all gradients are finite: commit() then refuses too. On a
        GPU check() raises it.)";

void bind_compressor(py::module_& module) {
  using Self = BoundCompressor;
  py::class_<Self>(module, "Compressor", kCompressorDoc,
                   py::release_gil_before_calling_cpp_dtor())  // a GPU may be waited for
      .def(py::init<const std::string&, int64_t, py::handle, int64_t, int, int, int,
                    ParameterShapes, const std::string&>(),
           py::arg("spec"), py::arg("numel"), py::arg("dtype") = "float32", py::arg("seed") = 0,
           py::arg("rank") = 0, py::arg("threads") = 1, py::arg("world_size") = 1, py::kw_only(),
           py::arg("shapes") = py::none(), py::arg("device") = "cpu")
      .def_property_readonly(
          "spec", [](const Self& s) { return to_string(s.compressor().spec()); },
          "The canonical spec text.")
      .def_property_readonly(
          "numel", [](const Self& s) { return s.compressor().shape().numel; },
          "Elements of the gradient.")
      .def_property_readonly(
          "dtype", [](const Self& s) { return to_string(s.compressor().shape().dtype); },
          "'float32', 'float16' or 'bfloat16'.")
      .def_property_readonly(
          "seed", [](const Self& s) { return s.compressor().shape().seed; },
          "Seed of stochastic rounding.")
      .def_property_readonly(
          "rank", [](const Self& s) { return s.compressor().shape().rank; },
          "Rank given at construction.")
      .def_property_readonly(
          "world_size", [](const Self& s) { return s.compressor().shape().world_size; },
          "Ranks whose payloads become one mean.")
      .def_property_readonly("shapes", &Self::shapes,
                             "Shapes of the parameters, as lists of integers, or None.")
      .def_property_readonly(
          "rounds", [](const Self& s) { return s.compressor().rounds(); },
          "Exchanges in a step: 2 of powersgd with rounds=2 and a matrix, else 1.")
      .def_property_readonly(
          "first_bytes", [](const Self& s) { return s.compressor().first_bytes(); },
          "Bytes of every payload of a first round; 0 where there is one.")
      .def_property_readonly(
          "capacity_bytes", [](const Self& s) { return s.compressor().capacity_bytes(); },
          "Upper bound of a payload, the same on all ranks.")
      .def_property_readonly(
          "fixed_length", [](const Self& s) { return s.compressor().fixed_length(); },
          "Whether every payload has exactly capacity_bytes.")
      .def_property_readonly(
          "keeps_residual", [](const Self& s) { return s.compressor().spec().feedback.on; },
          "Whether the spec asks for error feedback.")
      .def_property("step", &Self::step, &Self::set_step,
                    "Commits so far; seeds stochastic rounding. Set it from a checkpoint, before "
                    "state, which it makes the compressor forget.")
      .def_property("state", &Self::state, &Self::set_state,
                    "What committed steps taught beyond step, as integers; empty for most. Set it "
                    "from a checkpoint; InvalidArgument for a state of another shape.")
      .def_property("velocity", &Self::velocity, &Self::set_velocity,
                    "A copy of the committed velocity, float32, or None where the spec keeps none. "
                    "Setting step makes it zero; set it from a checkpoint behind that.")
      .def("compress", &Self::compress, kCompressDoc, py::arg("gradient"),
           py::arg("residual") = py::none(), py::arg("next_residual") = py::none(),
           py::arg("out") = py::none(), py::arg("stream") = py::none())
      .def("take_first", &Self::take_first, kTakeFirstDoc, py::arg("payloads"),
           py::arg("scale") = 1.0f, py::arg("stream") = py::none())
      .def("compress_second", &Self::compress_second, kCompressSecondDoc, py::arg("gradient"),
           py::arg("residual") = py::none(), py::arg("next_residual") = py::none(),
           py::arg("out") = py::none(), py::arg("stream") = py::none())
      .def("compress_accumulated", &Self::compress_accumulated, kAccumulatedDoc, py::arg("values"),
           py::arg("out") = py::none(), py::arg("stream") = py::none())
      .def("restore", &Self::restore, kRestoreDoc, py::arg("payload"), py::arg("values"),
           py::arg("stream") = py::none())
      .def("decompress", &Self::decompress, kDecompressDoc, py::arg("payloads"),
           py::arg("scale") = 1.0f, py::arg("out") = py::none(), py::arg("stream") = py::none())
      .def("add_estimate", &Self::add_estimate, py::arg("mean"), py::arg("estimate"),
           py::arg("next_estimate"), py::arg("stream") = py::none(),
           "Of a spec with ef21, behind decompress(), whose result is `mean`: writes estimate + "
           "mean to `mean` and next_estimate, numel float32 elements each. On a GPU the two "
           "estimates are passed in the same order in every step, as the residuals are, and a sum "
           "that overflows stops the commit.\n\n"
           "Raises:\n    InvalidArgument: a spec without ef21, another dtype or size, arrays that "
           "share memory.")
      .def(
          "commit", &Self::commit, py::arg("stream") = py::none(), py::arg("skip") = false,
          "Makes what the last compress() drew final: its next_residual is now the committed one. "
          "On "
          "a GPU it is enqueued (stream None: on the last call's); where the step met NaN or "
          "infinity "
          "nothing is committed, with skip in this step alone, else until check().\n\n"
          "Raises:\n    NonFiniteGradient: the last gradient held NaN or infinity, or the last sum "
          "of payloads overflowed (on the CPU).")
      .def("check", &Self::check_faults, py::arg("stream") = py::none(),
           "On a GPU waits, raises what stopped commits, and forgets it: the committed state "
           "stands. "
           "Call it once in a while. On the CPU calls raise for themselves.\n\n"
           "Raises:\n    NonFiniteGradient: a gradient of some rank held NaN or infinity, or the "
           "sum "
           "of all ranks' overflowed.\n"
           "    InvalidArgument: a payload that does not belong here, naming which and why.")
      .def_property_readonly(
          "parity", &Self::parity,
          "On a GPU which of the two residuals, passed in the same order in every step, is the "
          "committed one: 0 the first, 1 the second; waits. On the CPU 0.")
      .def_property_readonly(
          "device",
          [](const Self& s) {
            const Device device = s.compressor().shape().device;
            return device.type == DeviceType::kCpu ? std::string("cpu")
                                                   : concat("cuda:", device.index);
          },
          "'cpu', or 'cuda:' and the number of the GPU.")
      .def("__repr__", [](const Self& s) {
        const Compressor& c = s.compressor();
        return concat("Compressor('", to_string(c.spec()), "', ", c.shape().numel, ", '",
                      to_string(c.shape().dtype), "')");
      });
}

}  // namespace

void bind_kernels(py::module_& module) {
  bind_spec(module);
  bind_payload(module);
  bind_compressor(module);
}

}  // namespace gradwire::bindings
