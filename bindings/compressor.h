#pragma once
// A compressor as Python holds it.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/worker.h"
#include "gradwire/kernels/compress/compressor.h"

namespace gradwire::bindings {

/// What each parameter of a group is, in order; none: one parameter, which is no matrix.
using ParameterShapes = std::optional<std::vector<std::vector<int64_t>>>;

/// A compressor, its stream, and whether what it wrote last may be committed.
class BoundCompressor {
 public:
  BoundCompressor(const std::string& spec, int64_t numel, py::handle dtype, int64_t seed, int rank,
                  int threads, int world_size, ParameterShapes shapes);

  const Compressor& compressor() const { return *compressor_; }
  const ParameterShapes& shapes() const { return shapes_; }

  py::array_t<uint8_t> compress(py::handle gradient, py::handle residual, py::handle next_residual,
                                py::object out);
  py::array_t<uint8_t> compress_second(py::handle gradient, py::handle residual,
                                       py::handle next_residual, py::object out);
  py::array_t<uint8_t> compress_accumulated(py::handle values, py::object out);
  void take_first(py::handle payloads, float scale);
  void restore(py::handle payload, py::handle values);
  py::object decompress(py::handle payloads, float scale, py::object out);
  void commit();

  uint32_t step();
  void set_step(int64_t step);
  std::vector<uint64_t> state();
  void set_state(const std::vector<uint64_t>& state);
  py::object velocity();
  void set_velocity(py::handle values);

 private:
  using Write = void (Compressor::*)(ConstGradient, ConstResidual, Residual, Payload, Context&);

  py::array_t<uint8_t> write(Write verb, py::handle gradient, py::handle residual,
                             py::handle next_residual, py::object out);
  Array accumulated(py::handle values) const;
  Array room_for_payload(py::object& out) const;
  py::array_t<uint8_t> written(const Array& payload, const py::object& out);

  const ParameterShapes shapes_;
  std::unique_ptr<Compressor> compressor_;
  Worker worker_;
  std::atomic<bool> nonfinite_ = false;
};

}  // namespace gradwire::bindings
