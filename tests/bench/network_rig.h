#pragma once
// A network on the device of the tests: the CPU, or with GRADWIRE_LAWS_ON_DEVICE the first GPU.

#include <random>

#include "tests/bench/network_case.h"

namespace network_case {

inline std::unique_ptr<gradwire::Stream> make_device_stream() {
#if defined(GRADWIRE_LAWS_ON_DEVICE)
  return gradwire::cuda::make_stream(0);
#else
  return gradwire::make_inline_stream();
#endif
}

class Rig {
 public:
  Rig(const trainer::NetworkShape& shape, size_t max_batch)
      : model(shape, max_batch, *math_), labels_(max_batch, math_->device()) {
    for (const gradwire::ParamInfo& info : model.parameters()) {
      gradients_.emplace_back(info.numel(), math_->device());
      model.bind_gradient(static_cast<gradwire::ParamId>(gradients_.size() - 1),
                          gradients_.back().span());
    }
  }

  trainer::Math& math() { return *math_; }
  std::vector<float> value(gradwire::ParamId p) { return read(model.value(p)); }
  std::vector<float> gradient(gradwire::ParamId p) { return read(gradients_[p].span()); }
  void fill_gradient(gradwire::ParamId p, float value) {
    write(std::vector<float>(gradients_[p].span().size(), value), gradients_[p].span());
  }
  size_t parameters() const { return gradients_.size(); }
  void set_inputs(const std::vector<float>& inputs) { write(inputs, model.inputs()); }
  std::span<const uint8_t> labels(const std::vector<uint8_t>& labels) {
    const std::span<uint8_t> there = labels_.span().first(labels.size());
    math_->write(std::as_bytes(std::span(labels)), std::as_writable_bytes(there));
    return there;
  }

  /// He's, with biases that are not 0 and a last layer that is not small.
  void initialise(std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    model.initialise(3);
    for (gradwire::ParamId p = 0; p < parameters(); ++p) {
      std::vector<float> values = value(p);
      for (float& x : values) {
        x += 0.3f * uniform(random);
      }
      model.set_value(p, values);
    }
  }

 private:
  std::vector<float> read(std::span<const float> from) {
    std::vector<float> to(from.size());
    math_->read(std::as_bytes(from), std::as_writable_bytes(std::span(to)));
    return to;
  }
  void write(const std::vector<float>& from, std::span<float> to) {
    math_->write(std::as_bytes(std::span(from)), std::as_writable_bytes(to.first(from.size())));
  }

  std::unique_ptr<gradwire::Stream> stream_ = make_device_stream();
  std::unique_ptr<trainer::Math> math_ = trainer::make_math(*stream_);

 public:
  trainer::Network model;

 private:
  trainer::Array<uint8_t> labels_;
  std::vector<trainer::Array<float>> gradients_;
};

}  // namespace network_case
