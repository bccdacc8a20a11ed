// A compressor as Python holds it: what it is given, checked and viewed, and handed to the layer.

#include "gradwire/bindings/compressor.h"

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/compress/segments.h"

namespace gradwire::bindings {
namespace {

constexpr size_t kMostNumel = size_t{1} << 31;  // of a group

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::vector<Segment> segments_of(const ParameterShapes& shapes, size_t numel) {
  std::vector<Segment> segments;
  size_t total = 0;
  for (uint32_t p = 0; shapes && p < shapes->size(); ++p) {
    const std::vector<int64_t>& shape = (*shapes)[p];
    const std::vector<size_t> extents(shape.begin(), shape.end());
    size_t product = 1;
    for (const int64_t extent : shape) {
      check(extent >= 1, "shapes[", p, "]: is ", text_of(shape),
            ", must hold integers from 1 on alone");
      check(static_cast<size_t>(extent) <= kMostNumel / product, "shapes[", p, "]: is ",
            text_of(shape), ", must have at most ", kMostNumel, " elements");
      product *= static_cast<size_t>(extent);
    }
    segments.push_back(whole_parameter(p, extents));
    total += product;
  }
  check(!shapes || total == numel, "shapes: have ", total, " elements, must have numel = ", numel);
  return segments;
}

CompressorShape shape_of(int64_t numel, py::handle dtype, int64_t seed, int rank, int world_size,
                         const ParameterShapes& shapes) {
  check(numel >= 0, "numel: is ", numel, ", must not be negative");
  check(seed >= 0, "seed: is ", seed, ", must not be negative");
  CompressorShape shape;
  shape.numel = static_cast<size_t>(numel);
  shape.dtype = parse_dtype(dtype);
  shape.segments = segments_of(shapes, shape.numel);
  shape.seed = static_cast<uint64_t>(seed);
  shape.rank = rank;
  shape.world_size = world_size;
  return shape;
}

/// One payload or several, with what keeps them where they are.
struct Payloads {
  std::vector<Array> owners;
  std::vector<ConstPayload> parts;
};

/// @throws NonFiniteGradient where one says so.
Payloads payloads_of(py::handle given) {
  Payloads all;
  if (py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given)) {
    for (const py::handle part : given) {
      all.owners.push_back(Array::input_bytes(part, concat("payloads[", all.owners.size(), "]")));
    }
    check(!all.owners.empty(), "payloads: is empty, must hold at least one payload");
  } else {
    all.owners.push_back(Array::input_bytes(given, "payload"));
  }
  for (const Array& owner : all.owners) {
    const ConstPayload part = owner.bytes();
    if ((read_header(part).flags & kFlagNonFinite) != 0) {
      throw NonFiniteGradient(concat("payloads[", all.parts.size(),
                                     "]: its gradient held NaN or infinity, must be finite"));
    }
    all.parts.push_back(part);
  }
  return all;
}

}  // namespace

BoundCompressor::BoundCompressor(const std::string& spec, int64_t numel, py::handle dtype,
                                 int64_t seed, int rank, int threads, int world_size,
                                 ParameterShapes shapes)
    : shapes_(std::move(shapes)),
      compressor_(make_compressor(parse_spec(spec),
                                  shape_of(numel, dtype, seed, rank, world_size, shapes_))),
      worker_(threads) {}

py::array_t<uint8_t> BoundCompressor::write(Write verb, py::handle gradient, py::handle residual,
                                            py::handle next_residual, py::object out) {
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
    ((*compressor_).*verb)(g.view(), e.floats(), next.floats(), payload.bytes(), context);
  });
  return written(payload, out);
}

py::array_t<uint8_t> BoundCompressor::compress(py::handle gradient, py::handle residual,
                                               py::handle next_residual, py::object out) {
  return write(&Compressor::compress, gradient, residual, next_residual, std::move(out));
}

py::array_t<uint8_t> BoundCompressor::compress_second(py::handle gradient, py::handle residual,
                                                      py::handle next_residual, py::object out) {
  return write(&Compressor::compress_second, gradient, residual, next_residual, std::move(out));
}

void BoundCompressor::take_first(py::handle payloads, float scale) {
  const Payloads given = payloads_of(payloads);
  worker_.run([&](Context& context) { compressor_->take_first(given.parts, scale, context); });
}

py::array_t<uint8_t> BoundCompressor::compress_accumulated(py::handle values, py::object out) {
  const Array x = accumulated(values);
  const Array payload = room_for_payload(out);
  check_disjoint(payload, "out", x, "values");
  worker_.run([&](Context& context) {
    compressor_->compress_accumulated(x.floats(), payload.bytes(), context);
  });
  return written(payload, out);
}

void BoundCompressor::restore(py::handle payload, py::handle values) {
  const Array from = Array::input_bytes(payload, "payload");
  const Array x = accumulated(values);
  check_disjoint(x, "values", from, "payload");
  worker_.run([&](Context& context) { compressor_->restore(from.bytes(), x.floats(), context); });
}

py::object BoundCompressor::decompress(py::handle payloads, float scale, py::object out) {
  const CompressorShape& shape = compressor_->shape();
  const Payloads given = payloads_of(payloads);
  if (out.is_none()) {
    out = new_array(shape.dtype, shape.numel);
  }
  const Array sum = Array::output(out, {"out", shape.dtype, shape.numel});
  for (const Array& owner : given.owners) {
    check_disjoint(sum, "out", owner, "a payload");
  }
  worker_.run([&](Context& context) {
    compressor_->decompress(given.parts, scale, sum.writable_view(), context);
  });
  return out;
}

void BoundCompressor::commit() {
  if (nonfinite_) {
    throw NonFiniteGradient(
        "commit: the last gradient held NaN or infinity, must be finite; nothing was committed");
  }
  worker_.run([&](Context&) { compressor_->commit(); });
}

uint32_t BoundCompressor::step() {
  return worker_.alone([&] { return compressor_->step(); });
}

void BoundCompressor::set_step(int64_t step) {
  check(step >= 0 && step <= UINT32_MAX, "step: is ", step, ", must be in [0, 2^32)");
  worker_.run([&](Context&) { compressor_->set_step(static_cast<uint32_t>(step)); });
  nonfinite_ = false;
}

std::vector<uint64_t> BoundCompressor::state() {
  return worker_.alone([&] { return compressor_->state(); });
}

void BoundCompressor::set_state(const std::vector<uint64_t>& state) {
  worker_.run([&](Context&) { compressor_->set_state(state); });
}

py::object BoundCompressor::velocity() {
  if (!keeps_velocity(compressor_->spec())) {
    return py::none();
  }
  const std::span<const float> values = worker_.alone([&] { return compressor_->velocity(); });
  return copy_of(view_of(values));
}

void BoundCompressor::set_velocity(py::handle values) {
  check(keeps_velocity(compressor_->spec()), "velocity: '", to_string(compressor_->spec()),
        "' keeps none, must be of a spec that does");
  const CompressorShape& shape = compressor_->shape();
  const Array from = Array::input(values, {"velocity", DType::kFloat32, shape.numel});
  const std::span<const float> given = from.view().as<float>();
  check(std::ranges::all_of(given, [](float x) { return std::isfinite(x); }),
        "velocity: holds NaN or infinity, must be finite");
  worker_.run([&](Context&) { std::ranges::copy(given, compressor_->velocity().begin()); });
}

Array BoundCompressor::accumulated(py::handle values) const {
  return Array::output(values, {"values", DType::kFloat32, compressor_->shape().numel});
}

// Makes `out` a new array where it is None.
Array BoundCompressor::room_for_payload(py::object& out) const {
  const size_t capacity = compressor_->capacity_bytes();
  if (out.is_none()) {
    out = py::array_t<uint8_t>(static_cast<py::ssize_t>(capacity));
  }
  return Array::output_bytes(out, "out", capacity);
}

py::array_t<uint8_t> BoundCompressor::written(const Array& payload, const py::object& out) {
  const PayloadHeader header = read_header(payload.bytes());
  nonfinite_ = (header.flags & kFlagNonFinite) != 0;
  // The memory as an array of its own, without a copy: `out` may be a bytearray as well.
  return py::array_t<uint8_t>(static_cast<py::ssize_t>(header.bytes),
                              reinterpret_cast<uint8_t*>(payload.bytes().data()), out);
}

}  // namespace gradwire::bindings
