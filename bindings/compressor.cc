// A compressor as Python holds it: what it is given, checked and viewed, and handed to the layer.

#include "gradwire/bindings/compressor.h"

#include <algorithm>
#include <cmath>

#include "gradwire/bindings/device_array.h"
#include "gradwire/kernels/core/external_stream.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/feedback_cuda.h"

namespace gradwire::bindings {
namespace {

std::vector<Segment> segments_of_group(const ParameterShapes& shapes, size_t numel) {
  std::vector<Segment> segments = segments_of(shapes.value_or(Shapes()));
  size_t total = 0;
  for (const Segment& segment : segments) {
    total += segment.numel;
  }
  check(!shapes || total == numel, "shapes: have ", total, " elements, must have numel = ", numel);
  return segments;
}

CompressorShape shape_of(int64_t numel, py::handle dtype, int64_t seed, int rank, int world_size,
                         const ParameterShapes& shapes, std::shared_ptr<DeviceState> state) {
  check(numel >= 0, "numel: is ", numel, ", must not be negative");
  check(seed >= 0, "seed: is ", seed, ", must not be negative");
  CompressorShape shape;
  shape.numel = static_cast<size_t>(numel);
  shape.dtype = parse_dtype(dtype);
  shape.segments = segments_of_group(shapes, shape.numel);
  shape.seed = static_cast<uint64_t>(seed);
  shape.rank = rank;
  shape.world_size = world_size;
  if (state != nullptr) {
    shape.device = state->device();
    shape.state = std::move(state);
  }
  return shape;
}

/// One payload or several, with what keeps them where they are.
struct Payloads {
  std::vector<Array> owners;
  std::vector<ConstPayload> parts;
};

/// @throws NonFiniteGradient where one says so that the CPU can read.
Payloads payloads_of(py::handle given, const Place& place) {
  Payloads all;
  if (py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given)) {
    for (const py::handle part : given) {
      all.owners.push_back(
          Array::input_bytes(part, concat("payloads[", all.owners.size(), "]"), place));
    }
    check(!all.owners.empty(), "payloads: is empty, must hold at least one payload");
  } else {
    all.owners.push_back(Array::input_bytes(given, "payload", place));
  }
  for (const Array& owner : all.owners) {
    const ConstPayload part = owner.bytes();
    if (place.device.type == DeviceType::kCpu && (read_header(part).flags & kFlagNonFinite) != 0) {
      throw NonFiniteGradient(concat("payloads[", all.parts.size(),
                                     "]: its gradient held NaN or infinity, must be finite"));
    }
    all.parts.push_back(part);
  }
  return all;
}

/// Whose library's stream is meant: of one payload, or the first of several.
py::object first_of(py::handle given) {
  const bool several = py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given);
  const py::object one = py::reinterpret_borrow<py::object>(given);
  return several && py::len(given) > 0 ? py::object(one[py::int_(0)]) : one;
}

std::shared_ptr<DeviceState> state_on(Device device, const std::string& text) {
  if (device.type == DeviceType::kCpu) {
    return nullptr;
  }
  cuda::check_device(concat("device: is '", text, "'"), device.index);
  return std::make_shared<DeviceState>(device);
}

}  // namespace

BoundCompressor::BoundCompressor(const std::string& spec, int64_t numel, py::handle dtype,
                                 int64_t seed, int rank, int threads, int world_size,
                                 ParameterShapes shapes, const std::string& device)
    : shapes_(std::move(shapes)),
      device_state_(state_on(parse_device(device), device)),
      compressor_(make_compressor(parse_spec(spec), shape_of(numel, dtype, seed, rank, world_size,
                                                             shapes_, device_state_))),
      worker_(threads, compressor_->shape().device) {}

py::object BoundCompressor::write(Write verb, const py::handle (&arrays)[3], py::object out,
                                  py::handle stream) {
  const auto [gradient, residual, next_residual] = arrays;
  const CompressorShape& shape = compressor_->shape();
  const Place place = place_for(stream, gradient);
  const Array g = Array::input(gradient, {"gradient", shape.dtype, shape.numel}, place);
  check(residual.is_none() == next_residual.is_none(),
        "residual: given without next_residual or the other way round, must be both or neither");
  Array e, next;
  if (!residual.is_none()) {
    // On a GPU either of the two may be the one that is written.
    const Expected expected{"residual", DType::kFloat32, shape.numel};
    e = worker_.on_gpu() ? Array::output(residual, expected, place)
                         : Array::input(residual, expected);
    next = Array::output(next_residual, {"next_residual", DType::kFloat32, shape.numel}, place);
    check_disjoint(next, "next_residual", e, "residual");
    check_disjoint(next, "next_residual", g, "gradient");
  }
  const Array payload = room_for_payload(out, place);
  check_disjoint(payload, "out", g, "gradient");
  check_disjoint(payload, "out", e, "residual");
  check_disjoint(payload, "out", next, "next_residual");
  worker_.run(
      [&](Context& context) {
        ((*compressor_).*verb)(g.view(), e.floats(), next.floats(), payload.bytes(), context);
      },
      place.stream);
  return written(payload, std::move(out));
}

py::object BoundCompressor::compress(py::handle gradient, py::handle residual,
                                     py::handle next_residual, py::object out, py::handle stream) {
  return write(&Compressor::compress, {gradient, residual, next_residual}, std::move(out), stream);
}

py::object BoundCompressor::compress_second(py::handle gradient, py::handle residual,
                                            py::handle next_residual, py::object out,
                                            py::handle stream) {
  return write(&Compressor::compress_second, {gradient, residual, next_residual}, std::move(out),
               stream);
}

void BoundCompressor::take_first(py::handle payloads, float scale, py::handle stream) {
  const Place place = place_for(stream, first_of(payloads));
  const Payloads given = payloads_of(payloads, place);
  worker_.run([&](Context& context) { compressor_->take_first(given.parts, scale, context); },
              place.stream);
}

py::object BoundCompressor::compress_accumulated(py::handle values, py::object out,
                                                 py::handle stream) {
  const Place place = place_for(stream, values);
  const Array x = accumulated(values, place);
  const Array payload = room_for_payload(out, place);
  check_disjoint(payload, "out", x, "values");
  worker_.run(
      [&](Context& context) {
        compressor_->compress_accumulated(x.floats(), payload.bytes(), context);
      },
      place.stream);
  return written(payload, std::move(out));
}

void BoundCompressor::restore(py::handle payload, py::handle values, py::handle stream) {
  const Place place = place_for(stream, values);
  const Array from = Array::input_bytes(payload, "payload", place);
  const Array x = accumulated(values, place);
  check_disjoint(x, "values", from, "payload");
  worker_.run([&](Context& context) { compressor_->restore(from.bytes(), x.floats(), context); },
              place.stream);
}

py::object BoundCompressor::decompress(py::handle payloads, float scale, py::object out,
                                       py::handle stream) {
  const CompressorShape& shape = compressor_->shape();
  const Place place = place_for(stream, first_of(payloads));
  const Payloads given = payloads_of(payloads, place);
  if (out.is_none()) {
    out = worker_.on_gpu()
              ? py::cast(DeviceArray(std::string(to_string(shape.dtype)), {shape.numel}, place))
              : py::object(new_array(shape.dtype, shape.numel));
  }
  const Array sum = Array::output(out, {"out", shape.dtype, shape.numel}, place);
  for (const Array& owner : given.owners) {
    check_disjoint(sum, "out", owner, "a payload");
  }
  bool finite = true;
  worker_.run(
      [&](Context& context) {
        compressor_->decompress(given.parts, scale, sum.writable_view(), context,
                                worker_.on_gpu() ? nullptr : &finite);
      },
      place.stream);
  if (!finite) {
    overflows_ = true;
    throw NonFiniteGradient(
        "decompress: the sum of the payloads overflows float32, though their gradients are finite");
  }
  return out;
}

void BoundCompressor::add_estimate(py::handle mean, py::handle estimate, py::handle next,
                                   py::handle stream) {
  const Compressor& c = *compressor_;
  check(c.spec().feedback.ef21, "add_estimate: the spec is '", to_string(c.spec()),
        "', must have ef21");
  const Place place = place_for(stream, mean);
  const auto array = [&](py::handle given, std::string_view what) {
    return Array::output(given, {what, DType::kFloat32, c.shape().numel}, place);
  };
  const Array sum = array(mean, "mean"), a = array(estimate, "estimate");
  const Array b = array(next, "next_estimate");
  check_disjoint(sum, "mean", a, "estimate");
  check_disjoint(sum, "mean", b, "next_estimate");
  check_disjoint(b, "next_estimate", a, "estimate");
  worker_.run(
      [&](Context& context) {
        if (worker_.on_gpu()) {  // which of the two is committed is known there alone
          cuda::StepWords* const words = device_state_->words();
          cuda::add_estimate({.estimate = {a.floats(), b.floats(), &words->parity},
                              .next = {b.floats(), a.floats(), &words->parity},
                              .mean = sum.floats(),
                              .status = &words->status},
                             context.stream);
          return;
        }
        cpu::add(a.floats(), sum.floats(), sum.floats());
        std::ranges::copy(sum.floats(), b.floats().begin());
      },
      place.stream);
}

void BoundCompressor::commit(py::handle stream, bool skip) {
  const Place place = place_for(stream, py::none());
  if (nonfinite_ || overflows_) {
    throw NonFiniteGradient(
        concat("commit: ",
               nonfinite_ ? "the last gradient held NaN or infinity, must be finite"
                          : "the last sum of payloads overflows float32, must be finite",
               "; nothing was committed"));
  }
  worker_.run(
      [&](Context& context) {
        if (worker_.on_gpu()) {
          device_state_->commit(skip ? OnNonFinite::kSkip : OnNonFinite::kError, context.stream);
        } else {
          compressor_->commit();
        }
      },
      place.stream);
}

void BoundCompressor::check_faults(py::handle stream) {
  const Place place = place_for(stream, py::none());
  worker_.run(
      [&](Context& context) {
        if (!worker_.on_gpu()) {
          return;  // there calls throw what they meet
        }
        const cuda::StepWords words = device_state_->read(context.stream);
        if (words.status == 0) {
          return;
        }
        device_state_->clear(context.stream);
        try {
          DeviceState::check(words);
        } catch (const InvalidArgument& fault) {
          if ((words.status & cuda::kStatusMalformed) != 0) {
            throw;
          }
          throw NonFiniteGradient(fault.what());
        }
      },
      place.stream);
}

cuda::StepWords BoundCompressor::words() {
  cuda::StepWords words{};
  worker_.run([&](Context& context) { words = device_state_->read(context.stream); });
  return words;
}

uint32_t BoundCompressor::parity() { return worker_.on_gpu() ? words().parity : 0; }

uint32_t BoundCompressor::step() {
  return worker_.on_gpu() ? words().step : worker_.alone([&] { return compressor_->step(); });
}

void BoundCompressor::set_step(int64_t step) {
  check(step >= 0 && step <= UINT32_MAX, "step: is ", step, ", must be in [0, 2^32)");
  worker_.run([&](Context& context) {
    if (worker_.on_gpu()) {
      device_state_->set_step(static_cast<uint32_t>(step), context.stream);
    } else {
      compressor_->set_step(static_cast<uint32_t>(step));
    }
  });
  nonfinite_ = overflows_ = false;
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
  if (worker_.on_gpu()) {
    const CompressorShape& shape = compressor_->shape();
    const DeviceArray copy("float32", {shape.numel}, {shape.device});
    worker_.run([&](Context& context) {
      compressor_->read_velocity({static_cast<float*>(copy.data()), shape.numel}, context);
    });
    return copy.to_numpy();
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
  worker_.run([&](Context& context) {
    if (!worker_.on_gpu()) {
      std::ranges::copy(given, compressor_->velocity().begin());
      return;
    }
    const Buffer staged(given.size_bytes(), shape.device);
    copy_bytes(staged.bytes(), shape.device, std::as_bytes(given), {}, context.stream);
    compressor_->write_velocity(staged.as<float>(), context);
    context.stream.wait();  // both memories end here
  });
}

Place BoundCompressor::place_for(py::handle stream, py::handle array) {
  if (worker_.on_gpu()) {
    const bool as_before = stream.is_none() && array.is_none();
    const Place place = as_before ? Place{worker_.device(), last_stream_}
                                  : place_on(worker_.device(), "compressor", stream, array);
    last_stream_ = place.stream;
    return place;
  }
  check(stream.is_none(), "stream: is given, must be None: the compressor is of the CPU");
  return {};
}

Array BoundCompressor::accumulated(py::handle values, const Place& place) const {
  return Array::output(values, {"values", DType::kFloat32, compressor_->shape().numel}, place);
}

// Makes `out` a new array where it is None.
Array BoundCompressor::room_for_payload(py::object& out, const Place& place) const {
  const size_t capacity = compressor_->capacity_bytes();
  if (out.is_none() && worker_.on_gpu()) {
    out = py::cast(DeviceArray("uint8", {capacity}, place));
  } else if (out.is_none()) {
    out = py::array_t<uint8_t>(static_cast<py::ssize_t>(capacity));
  }
  return Array::output_bytes(out, "out", capacity, place);
}

py::object BoundCompressor::written(const Array& payload, py::object out) {
  if (worker_.on_gpu()) {
    return out;  // how much of it counts is in its header
  }
  const PayloadHeader header = read_header(payload.bytes());
  nonfinite_ = (header.flags & kFlagNonFinite) != 0;
  overflows_ = false;
  // The memory as an array of its own, without a copy: `out` may be a bytearray as well.
  return py::array_t<uint8_t>(static_cast<py::ssize_t>(header.bytes),
                              reinterpret_cast<uint8_t*>(payload.bytes().data()), out);
}

}  // namespace gradwire::bindings
