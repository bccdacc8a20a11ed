#pragma once
// A multi-layer perceptron, or a convolutional network that ends in one, with ReLU and softmax
// cross-entropy, whose backward pass hands over each gradient as soon as it is complete.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/trainer/conv.h"
#include "bench/trainer/math.h"
#include "gradwire/comm/plan.h"

namespace trainer {

struct NetworkShape {
  ImageShape image;
  std::vector<size_t> convolutions =
      {};                           ///< output channels of each ConvBlock; empty: a perceptron
  std::vector<size_t> hidden = {};  ///< widths of the hidden layers behind them
  size_t classes = 0;
};

/// A convolution's parameters are its weight and its bias (conv.h). Layer l behind them computes
/// z = x W^T + b, W being [width(l+1), width(l)]. Parameter 2k is a weight, 2k+1 its bias.
/// All buffers are allocated by the constructor, in the memory of the Math's device: on a GPU what
/// is not said to wait is enqueued.
class Network {
 public:
  /// Called with the parameter whose gradient has just been written.
  using GradientReady = std::function<void(gradwire::ParamId)>;

  /// Results of forward() that stay.
  static constexpr size_t kResults = kExamplesAhead;

  /// `math` outlives it. @throws gradwire::InvalidArgument for a width, an image or a number of
  /// classes of 0, and for more convolutions than halve the image.
  Network(const NetworkShape& shape, size_t max_batch, Math& math = cpu_math());

  /// Parameters of such a model, and the bytes the constructor allocates for it.
  static size_t count_parameters(const NetworkShape& shape);
  static size_t count_bytes(const NetworkShape& shape, size_t max_batch);

  /// In forward order: "conv0.weight", "conv0.bias", …, "layer0.weight", …
  const std::vector<gradwire::ParamInfo>& parameters() const { return parameters_; }
  size_t parameter_count() { return values_.span().size(); }
  gradwire::Device device() const { return math_.device(); }
  size_t max_batch() const { return max_batch_; }

  /// He initialisation (uniform in ±sqrt(6 / inputs); the last layer a tenth of it, so that
  /// training begins at a loss near log(classes)); biases 0. The same bits for a seed on every
  /// machine.
  void initialise(uint64_t seed);

  /// Where parameter p lies, on the device.
  std::span<float> value(gradwire::ParamId p);
  /// All parameters in the host's memory: on a GPU a copy, for which it waits, valid until the next
  /// call.
  std::span<const float> values();
  /// Takes parameter p from the host's memory. Waits.
  void set_value(gradwire::ParamId p, std::span<const float> value);

  /// Backward writes parameter p's gradient to `memory` of the device, which the caller keeps
  /// alive.
  void bind_gradient(gradwire::ParamId p, std::span<float> memory);

  /// The memory where the next batch's inputs belong, on the device: max_batch rows.
  std::span<float> inputs() {
    return convolutions_.empty() ? layers_.front().input.span() : convolutions_.front().input();
  }

  /// Runs the network on the first rows of inputs(), as many as there are labels, which lie on the
  /// device.
  void forward(std::span<const uint8_t> labels);

  /// Of the last `count` calls of forward(), the oldest first, at most kResults. Waits.
  std::vector<BatchResult> last_results(size_t count);
  BatchResult last_result() { return last_results(1).front(); }

  /// Gradients of the mean loss of the last forward pass, from the last layer to the first.
  void backward(std::span<const uint8_t> labels, const GradientReady& ready);

 private:
  struct Layer {
    size_t inputs = 0;
    size_t outputs = 0;
    gradwire::ParamId weight = 0;  // its bias follows
    Array<float> input;            // max_batch x inputs, after the previous layer's ReLU

    LayerShape shape() const { return {inputs, outputs}; }
  };

  /// Layer widths, of the images or of what convolutions make of them first.
  static std::vector<size_t> widths(const NetworkShape& shape);
  void add_parameters(const std::string& name, size_t outputs, size_t inputs);
  Weights weights(gradwire::ParamId weight) const { return {value_[weight], value_[weight + 1]}; }
  WeightGradients gradients(gradwire::ParamId weight) const {
    return {gradient_[weight], gradient_[weight + 1]};
  }
  std::span<float> host_values();
  void forward_convolutions(size_t batch);
  void backward_convolutions(size_t batch, const GradientReady& ready);

  Math& math_;
  size_t max_batch_;
  std::vector<ConvBlock> convolutions_;
  std::vector<Layer> layers_;
  std::vector<gradwire::ParamInfo> parameters_;
  Array<float> values_;             // all parameters, one after another
  std::vector<float> host_values_;  // of a GPU's, once they are asked for
  std::vector<std::span<float>> value_, gradient_;
  Array<float> logits_;
  Array<float> probabilities_;
  Array<float> delta_, next_delta_;  // d loss / d z of a layer
  Array<BatchResult> results_;       // of pass i at i mod kResults
  size_t passes_ = 0;
};

}  // namespace trainer
