#pragma once
// A multi-layer perceptron with ReLU and softmax cross-entropy, whose backward pass hands over each
// gradient as soon as it is complete.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gradwire/comm/plan.h"

namespace trainer {

/// Layer l computes z = x W^T + b, W being [width(l+1), width(l)]; parameter 2l is W, 2l+1 is b.
/// All buffers are allocated by the constructor.
class Mlp {
 public:
  /// Called with the parameter whose gradient has just been written.
  using GradientReady = std::function<void(gradwire::ParamId)>;

  /// `widths`: inputs, hidden layers, classes.
  /// @throws gradwire::InvalidArgument for fewer than two widths or a width of 0.
  Mlp(std::vector<size_t> widths, size_t max_batch);

  /// Parameters of a model of these widths, and the bytes the constructor allocates for it.
  static size_t count_parameters(std::span<const size_t> widths);
  static size_t count_bytes(std::span<const size_t> widths, size_t max_batch);

  /// In forward order: "layer0.weight", "layer0.bias", …
  const std::vector<gradwire::ParamInfo>& parameters() const { return parameters_; }
  size_t parameter_count() const { return values_.size(); }
  size_t max_batch() const { return max_batch_; }

  /// He initialisation (uniform in ±sqrt(6 / inputs); the last layer a tenth of it, so that
  /// training begins at a loss near log(classes)); biases 0. The same bits for a seed on every
  /// machine.
  void initialise(uint64_t seed);

  std::span<float> value(gradwire::ParamId p);
  std::span<const float> values() const { return values_; }

  /// Backward writes parameter p's gradient to `memory`, which the caller keeps alive.
  void bind_gradient(gradwire::ParamId p, std::span<float> memory);

  /// The memory where the next batch's inputs belong: max_batch rows.
  std::span<float> inputs() { return layers_.front().input; }

  /// Runs the network on the first `batch` rows of inputs() and returns the mean cross-entropy.
  double forward(std::span<const uint8_t> labels);

  /// How many rows of the last forward pass have their largest logit at their label.
  size_t correct(std::span<const uint8_t> labels) const;

  /// Gradients of the mean loss of the last forward pass, from the last layer to the first.
  void backward(std::span<const uint8_t> labels, const GradientReady& ready);

 private:
  struct Layer {
    size_t inputs = 0;
    size_t outputs = 0;
    std::span<float> weight;
    std::span<float> bias;
    std::span<float> weight_gradient;
    std::span<float> bias_gradient;
    std::vector<float> input;  // max_batch x inputs, after the previous layer's ReLU
  };

  void forward_layer(const Layer& layer, std::span<float> out, size_t batch) const;
  double softmax(std::span<const uint8_t> labels);
  void layer_gradients(Layer& layer, std::span<const float> delta, size_t batch);
  void propagate(const Layer& layer, std::span<const float> delta, std::span<float> out,
                 size_t batch) const;

  size_t max_batch_;
  std::vector<Layer> layers_;
  std::vector<gradwire::ParamInfo> parameters_;
  std::vector<float> values_;  // all parameters, one after another
  std::vector<float> logits_;
  std::vector<float> probabilities_;
  std::vector<float> delta_, next_delta_;  // d loss / d z of a layer
};

/// Threads of every matrix product in this process.
void set_math_threads(int threads);

}  // namespace trainer
