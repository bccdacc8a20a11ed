#pragma once
// A compressor as Python holds it.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/bindings/parameter_shapes.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/worker.h"
#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/compress/device_state.h"

namespace gradwire::bindings {

/// What each parameter of a group is, in order; none: one parameter, which is no matrix.
using ParameterShapes = std::optional<Shapes>;

/// A compressor, and whether what it wrote last may be committed. On a GPU calls are enqueued on
/// the stream they name, and what may be committed is decided there.
class BoundCompressor {
 public:
  BoundCompressor(const std::string& spec, int64_t numel, py::handle dtype, int64_t seed, int rank,
                  int threads, int world_size, ParameterShapes shapes, const std::string& device);

  const Compressor& compressor() const { return *compressor_; }
  const ParameterShapes& shapes() const { return shapes_; }

  py::object compress(py::handle gradient, py::handle residual, py::handle next_residual,
                      py::object out, py::handle stream);
  py::object compress_second(py::handle gradient, py::handle residual, py::handle next_residual,
                             py::object out, py::handle stream);
  py::object compress_accumulated(py::handle values, py::object out, py::handle stream);
  void take_first(py::handle payloads, float scale, py::handle stream);
  void restore(py::handle payload, py::handle values, py::handle stream);
  py::object decompress(py::handle payloads, float scale, py::object out, py::handle stream);
  /// Of a spec with ef21, behind decompress(): mean = next = estimate + mean.
  void add_estimate(py::handle mean, py::handle estimate, py::handle next, py::handle stream);
  void commit(py::handle stream, bool skip);

  /// Waits. @throws NonFiniteGradient or InvalidArgument for what stopped commits on a GPU, and
  /// forgets it.
  void check_faults(py::handle stream);
  /// On a GPU which residual is the committed one, the first (0) or the second that compress() is
  /// given; waits. On the CPU 0.
  uint32_t parity();

  uint32_t step();
  void set_step(int64_t step);
  std::vector<uint64_t> state();
  void set_state(const std::vector<uint64_t>& state);
  py::object velocity();
  void set_velocity(py::handle values);

 private:
  using Write = void (Compressor::*)(ConstGradient, ConstResidual, Residual, Payload, Context&);

  py::object write(Write verb, const py::handle (&arrays)[3], py::object out, py::handle stream);
  /// Where `stream` is None: the current stream of `array`'s library, of no array the last call's.
  Place place_for(py::handle stream, py::handle array);
  Array accumulated(py::handle values, const Place& place) const;
  Array room_for_payload(py::object& out, const Place& place) const;
  py::object written(const Array& payload, py::object out);
  cuda::StepWords words();

  const ParameterShapes shapes_;
  std::shared_ptr<DeviceState> device_state_;  // on a GPU
  std::unique_ptr<Compressor> compressor_;
  Worker worker_;
  std::atomic<bool> nonfinite_ = false;  // on the CPU
  std::atomic<bool> overflows_ = false;  // likewise: the last decompress() since
  void* last_stream_ = nullptr;          // on a GPU
};

}  // namespace gradwire::bindings
