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
/// All buffers are allocated by the constructor.
class Network {
 public:
  /// Called with the parameter whose gradient has just been written.
  using GradientReady = std::function<void(gradwire::ParamId)>;

  /// @throws gradwire::InvalidArgument for a width, an image or a number of classes of 0, and for
  /// more convolutions than halve the image.
  Network(const NetworkShape& shape, size_t max_batch);

  /// Parameters of such a model, and the bytes the constructor allocates for it.
  static size_t count_parameters(const NetworkShape& shape);
  static size_t count_bytes(const NetworkShape& shape, size_t max_batch);

  /// In forward order: "conv0.weight", "conv0.bias", …, "layer0.weight", …
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
  std::span<float> inputs() {
    return convolutions_.empty() ? std::span<float>(layers_.front().input)
                                 : convolutions_.front().input();
  }

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
    gradwire::ParamId weight = 0;  // its bias follows
    std::vector<float> input;      // max_batch x inputs, after the previous layer's ReLU
  };

  /// Layer widths, of the images or of what convolutions make of them first.
  static std::vector<size_t> widths(const NetworkShape& shape);
  void add_parameters(const std::string& name, size_t outputs, size_t inputs);
  void forward_convolutions(size_t batch);
  void forward_layer(const Layer& layer, std::span<float> out, size_t batch) const;
  double softmax(std::span<const uint8_t> labels);
  void backward_convolutions(size_t batch, const GradientReady& ready);
  void layer_gradients(Layer& layer, size_t batch);
  void propagate(const Layer& layer, std::span<float> out, size_t batch) const;

  size_t max_batch_;
  std::vector<ConvBlock> convolutions_;
  std::vector<Layer> layers_;
  std::vector<gradwire::ParamInfo> parameters_;
  std::vector<float> values_;  // all parameters, one after another
  std::vector<std::span<float>> value_, gradient_;
  std::vector<float> logits_;
  std::vector<float> probabilities_;
  std::vector<float> delta_, next_delta_;  // d loss / d z of a layer
};

/// Threads of every matrix product in this process.
void set_math_threads(int threads);

}  // namespace trainer
