// gradwire/kernels for Python: spec strings and compressors.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/bindings/layers.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/worker.h"
#include "gradwire/kernels/compress/compressor.h"

namespace gradwire::bindings {
namespace {

CompressorShape shape_of(int64_t numel, py::handle dtype, int64_t seed, int rank,
                         int world_size) {
  check(numel >= 0, "numel: is ", numel, ", must not be negative");
  check(seed >= 0, "seed: is ", seed, ", must not be negative");
  CompressorShape shape;
  shape.numel = static_cast<size_t>(numel);
  shape.dtype = parse_dtype(dtype);
  shape.seed = static_cast<uint64_t>(seed);
  shape.rank = rank;
  shape.world_size = world_size;
  return shape;
}

// A compressor, its stream, and whether what it wrote last may be committed.
class BoundCompressor {
 public:
  BoundCompressor(const std::string& spec, int64_t numel, py::handle dtype, int64_t seed, int rank,
                  int threads, int world_size)
      : compressor_(
            make_compressor(parse_spec(spec), shape_of(numel, dtype, seed, rank, world_size))),
        worker_(threads) {}

  const Compressor& compressor() const { return *compressor_; }

  py::array_t<uint8_t> compress(py::handle gradient, py::handle residual, py::handle next_residual,
                                py::object out) {
    const CompressorShape& shape = compressor_->shape();
    const Array g = Array::input(gradient, {"gradient", shape.dtype, shape.numel});
    check(residual.is_none() == next_residual.is_none(),
          "residual: given without next_residual or the other way round, must be both or neither");
    Array e, next;
    if (!residual.is_none()) {
      e = Array::input(residual, {"residual", DType::kFloat32, shape.numel});
      next = Array::output(next_residual, {"next_residual", DType::kFloat32, shape.numel});
      check_disjoint(next, "next_residual", e, "residual");
      check_disjoint(next, "next_residual", g, "gradient");
    }
    const Array payload = room_for_payload(out);
    check_disjoint(payload, "out", g, "gradient");
    check_disjoint(payload, "out", e, "residual");
    check_disjoint(payload, "out", next, "next_residual");
    worker_.run([&](Context& context) {
      compressor_->compress(g.view(), e.floats(), next.floats(), payload.bytes(), context);
    });
    return written(payload, out);
  }

  py::array_t<uint8_t> compress_accumulated(py::handle values, py::object out) {
    const Array x = accumulated(values);
    const Array payload = room_for_payload(out);
    check_disjoint(payload, "out", x, "values");
    worker_.run([&](Context& context) {
      compressor_->compress_accumulated(x.floats(), payload.bytes(), context);
    });
    return written(payload, out);
  }

  void restore(py::handle payload, py::handle values) {
    const Array from = Array::input_bytes(payload, "payload");
    const Array x = accumulated(values);
    check_disjoint(x, "values", from, "payload");
    worker_.run([&](Context& context) { compressor_->restore(from.bytes(), x.floats(), context); });
  }

  py::object decompress(py::handle payloads, float scale, py::object out) {
    const CompressorShape& shape = compressor_->shape();
    std::vector<Array> owners;
    if (py::isinstance<py::list>(payloads) || py::isinstance<py::tuple>(payloads)) {
      for (const py::handle part : payloads) {
        owners.push_back(Array::input_bytes(part, concat("payloads[", owners.size(), "]")));
      }
      check(!owners.empty(), "payloads: is empty, must hold at least one payload");
    } else {
      owners.push_back(Array::input_bytes(payloads, "payload"));
    }
    if (out.is_none()) {
      out = new_array(shape.dtype, shape.numel);
    }
    const Array sum = Array::output(out, {"out", shape.dtype, shape.numel});
    std::vector<ConstPayload> parts;
    for (size_t i = 0; i < owners.size(); ++i) {
      const ConstPayload part = owners[i].bytes();
      if ((read_header(part).flags & kFlagNonFinite) != 0) {
        throw NonFiniteGradient(
            concat("payloads[", i, "]: its gradient held NaN or infinity, must be finite"));
      }
      check_disjoint(sum, "out", owners[i], "a payload");
      parts.push_back(part);
    }
    worker_.run([&](Context& context) {
      compressor_->decompress(parts, scale, sum.writable_view(), context);
    });
    return out;
  }

  void commit() {
    if (nonfinite_) {
      throw NonFiniteGradient(
          "commit: the last gradient held NaN or infinity, must be finite; nothing was committed");
    }
    worker_.run([&](Context&) { compressor_->commit(); });
  }

  uint32_t step() {
    return worker_.alone([&] { return compressor_->step(); });
  }

  void set_step(int64_t step) {
    check(step >= 0 && step <= UINT32_MAX, "step: is ", step, ", must be in [0, 2^32)");
    worker_.run([&](Context&) { compressor_->set_step(static_cast<uint32_t>(step)); });
    nonfinite_ = false;
  }

  std::vector<uint64_t> state() {
    return worker_.alone([&] { return compressor_->state(); });
  }

  void set_state(const std::vector<uint64_t>& state) {
    worker_.run([&](Context&) { compressor_->set_state(state); });
  }

  py::object velocity() {
    if (!keeps_velocity(compressor_->spec())) {
      return py::none();
    }
    const std::span<const float> values = worker_.alone([&] { return compressor_->velocity(); });
    return copy_of(view_of(values));
  }

  void set_velocity(py::handle values) {
    check(keeps_velocity(compressor_->spec()), "velocity: '", to_string(compressor_->spec()),
          "' keeps none, must be of a spec that does");
    const CompressorShape& shape = compressor_->shape();
    const Array from = Array::input(values, {"velocity", DType::kFloat32, shape.numel});
    const std::span<const float> given = from.view().as<float>();
    check(std::ranges::all_of(given, [](float x) { return std::isfinite(x); }),
          "velocity: holds NaN or infinity, must be finite");
    worker_.run([&](Context&) { std::ranges::copy(given, compressor_->velocity().begin()); });
  }

 private:
  Array accumulated(py::handle values) const {
    return Array::output(values, {"values", DType::kFloat32, compressor_->shape().numel});
  }

  // Makes `out` a new array where it is None.
  Array room_for_payload(py::object& out) const {
    const size_t capacity = compressor_->capacity_bytes();
    if (out.is_none()) {
      out = py::array_t<uint8_t>(static_cast<py::ssize_t>(capacity));
    }
    return Array::output_bytes(out, "out", capacity);
  }

  py::array_t<uint8_t> written(const Array& payload, const py::object& out) {
    const PayloadHeader header = read_header(payload.bytes());
    nonfinite_ = (header.flags & kFlagNonFinite) != 0;
    // The memory as an array of its own, without a copy: `out` may be a bytearray as well.
    return py::array_t<uint8_t>(static_cast<py::ssize_t>(header.bytes),
                                reinterpret_cast<uint8_t*>(payload.bytes().data()), out);
  }

  std::unique_ptr<Compressor> compressor_;
  Worker worker_;
  std::atomic<bool> nonfinite_ = false;
};

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
    R"(Compresses the gradients of `numel` elements on the CPU; never talks to the network.

Args:
    spec: what to do, e.g. 'topk:1%', 'int4', 'fp16' (see gradwire.compressors()).
    numel: elements of the gradient, below 2**32.
    dtype: of the gradient: 'float32', 'float16' or 'bfloat16', or a NumPy dtype.
    seed, rank: of stochastic rounding; ranks of one job pass the same seed.
    threads: of the loops; results have the same bits for any number.
    world_size: ranks whose payloads become one mean; dgc clips by it.

Arrays are viewed in place, in C order and of any shape; the GIL is released during the work.

Raises:
    InvalidArgument: for a bad spec or shape; an unknown name lists the known ones.)";

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

Returns:
    A view of the first bytes of `out`: as many as the payload has.

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

Raises:
    InvalidArgument: a payload that does not belong here, naming which and why.
    NonFiniteGradient: a payload made from a gradient that held NaN or infinity.)";

void bind_compressor(py::module_& module) {
  using Self = BoundCompressor;
  py::class_<Self>(module, "Compressor", kCompressorDoc)
      .def(py::init<const std::string&, int64_t, py::handle, int64_t, int, int, int>(), py::arg("spec"),
           py::arg("numel"), py::arg("dtype") = "float32", py::arg("seed") = 0, py::arg("rank") = 0,
           py::arg("threads") = 1, py::arg("world_size") = 1)
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
      .def_property_readonly(
          "capacity_bytes", [](const Self& s) { return s.compressor().capacity_bytes(); },
          "Upper bound of a payload, the same on all ranks.")
      .def_property_readonly(
          "fixed_length", [](const Self& s) { return s.compressor().fixed_length(); },
          "Whether every payload has exactly capacity_bytes.")
      .def_property_readonly(
          "keeps_residual", [](const Self& s) { return s.compressor().spec().error_feedback; },
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
           py::arg("out") = py::none())
      .def("compress_accumulated", &Self::compress_accumulated, kAccumulatedDoc, py::arg("values"),
           py::arg("out") = py::none())
      .def("restore", &Self::restore, kRestoreDoc, py::arg("payload"), py::arg("values"))
      .def("decompress", &Self::decompress, kDecompressDoc, py::arg("payloads"),
           py::arg("scale") = 1.0f, py::arg("out") = py::none())
      .def("commit", &Self::commit,
           "Makes what the last compress() drew final: its next_residual is now the committed "
           "one.\n\n"
           "Raises:\n    NonFiniteGradient: the last gradient held NaN or infinity.")
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
