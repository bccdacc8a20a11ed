#include "bench/trainer/network.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "bench/trainer/random.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

using gradwire::check;
using gradwire::concat;
using gradwire::ParamId;

blasint dimension(size_t value) { return static_cast<blasint>(value); }

}  // namespace

void set_math_threads(int threads) { openblas_set_num_threads(threads); }

std::vector<size_t> Network::widths(const NetworkShape& shape) {
  ImageShape image = shape.image;
  for (const size_t channels : shape.convolutions) {
    image = {channels, image.rows / 2, image.columns / 2};
  }
  std::vector<size_t> all = {image.size()};
  all.insert(all.end(), shape.hidden.begin(), shape.hidden.end());
  all.push_back(shape.classes);
  return all;
}

size_t Network::count_parameters(const NetworkShape& shape) {
  size_t total = 0, channels = shape.image.channels;
  for (const size_t next : shape.convolutions) {
    total += next * (9 * channels + 1);
    channels = next;
  }
  const std::vector<size_t> all = widths(shape);
  for (size_t l = 0; l + 1 < all.size(); ++l) {
    total += all[l + 1] * (all[l] + 1);
  }
  return total;
}

size_t Network::count_bytes(const NetworkShape& shape, size_t max_batch) {
  size_t convolutions = 0;
  ImageShape image = shape.image;
  for (const size_t channels : shape.convolutions) {
    convolutions += ConvBlock::count_bytes(image, channels, max_batch);
    image = {channels, image.rows / 2, image.columns / 2};
  }
  // Each layer's input, then logits and probabilities, and two times the widest for the deltas.
  const std::vector<size_t> all = widths(shape);
  const size_t widest = *std::max_element(all.begin(), all.end());
  const size_t row = std::accumulate(all.begin(), all.end(), all.back() + 2 * widest);
  return (count_parameters(shape) + max_batch * row) * sizeof(float) + convolutions;
}

Network::Network(const NetworkShape& shape, size_t max_batch) : max_batch_(max_batch) {
  check(max_batch > 0, "network: batch is 0, must be at least 1");
  check(shape.classes > 0, "network: there are 0 classes, must be at least 1");
  check(shape.image.size() > 0, "network: images are ", shape.image.channels, " x ",
        shape.image.rows, " x ", shape.image.columns, ", must be at least 1 x 1 x 1");
  values_.resize(count_parameters(shape));  // first: of all buffers the one that may be too large
  ImageShape image = shape.image;
  size_t widest = 0;
  for (const size_t channels : shape.convolutions) {
    add_parameters(concat("conv", convolutions_.size()), channels, 9 * image.channels);
    widest = std::max(widest, image.size());
    image = convolutions_.emplace_back(image, channels, max_batch).out();
  }
  const std::vector<size_t> all = widths(shape);
  for (size_t l = 0; l + 1 < all.size(); ++l) {
    check(all[l + 1] > 0, "network: width of layer ", l, " is 0, must be positive");
    layers_.push_back({all[l], all[l + 1], static_cast<ParamId>(parameters_.size()),
                       std::vector<float>(max_batch * all[l])});
    add_parameters(concat("layer", l), all[l + 1], all[l]);
  }
  size_t offset = 0;
  for (const gradwire::ParamInfo& info : parameters_) {
    const size_t size =
        std::accumulate(info.shape.begin(), info.shape.end(), size_t{1}, std::multiplies<>());
    value_.push_back(std::span(values_).subspan(offset, size));
    offset += size;
  }
  gradient_.resize(value_.size());
  widest = std::max(widest, *std::max_element(all.begin(), all.end()));
  logits_.resize(max_batch * shape.classes);
  probabilities_.resize(logits_.size());
  delta_.resize(max_batch * widest);
  next_delta_.resize(max_batch * widest);
}

void Network::add_parameters(const std::string& name, size_t outputs, size_t inputs) {
  parameters_.push_back({name + ".weight", {outputs, inputs}});
  parameters_.push_back({name + ".bias", {outputs}});
}

void Network::initialise(uint64_t seed) {
  Random random(seed, 0);
  for (ParamId p = 0; p < parameters_.size(); p += 2) {
    // Uniform rather than normal: no libm function whose last bit could differ between machines.
    double bound = std::sqrt(6.0 / static_cast<double>(parameters_[p].shape[1]));
    if (p + 2 == parameters_.size()) {
      bound *= 0.1;
    }
    for (float& weight : value_[p]) {
      weight = static_cast<float>(bound) * random.symmetric();
    }
    std::fill(value_[p + 1].begin(), value_[p + 1].end(), 0.0f);
  }
}

std::span<float> Network::value(ParamId p) {
  check(p < parameters_.size(), "network: parameter is ", p, ", must be below ",
        parameters_.size());
  return value_[p];
}

void Network::bind_gradient(ParamId p, std::span<float> memory) {
  check(memory.size() == value(p).size(), "network: gradient of ", parameters_[p].name, " has ",
        memory.size(), " elements, expected ", value(p).size());
  gradient_[p] = memory;
}

void Network::forward_convolutions(size_t batch) {
  for (size_t k = 0; k < convolutions_.size(); ++k) {
    const std::span<float> out = k + 1 < convolutions_.size() ? convolutions_[k + 1].input()
                                                              : std::span(layers_.front().input);
    convolutions_[k].forward(value_[2 * k], value_[2 * k + 1], batch, out);
  }
}

double Network::forward(std::span<const uint8_t> labels) {
  const size_t batch = labels.size();
  check(batch >= 1 && batch <= max_batch_, "network: batch is ", batch, ", must be 1 to ",
        max_batch_);
  forward_convolutions(batch);
  for (size_t l = 0; l + 1 < layers_.size(); ++l) {
    const std::span<float> out(layers_[l + 1].input.data(), batch * layers_[l].outputs);
    forward_layer(layers_[l], out, batch);
    for (float& x : out) {
      x = x > 0.0f ? x : 0.0f;
    }
  }
  forward_layer(layers_.back(), std::span(logits_).first(batch * layers_.back().outputs), batch);
  return softmax(labels);
}

void Network::forward_layer(const Layer& layer, std::span<float> out, size_t batch) const {
  for (size_t i = 0; i < batch; ++i) {
    std::copy(value_[layer.weight + 1].begin(), value_[layer.weight + 1].end(),
              out.begin() + i * layer.outputs);
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, dimension(batch), dimension(layer.outputs),
              dimension(layer.inputs), 1.0f, layer.input.data(), dimension(layer.inputs),
              value_[layer.weight].data(), dimension(layer.inputs), 1.0f, out.data(),
              dimension(layer.outputs));
}

double Network::softmax(std::span<const uint8_t> labels) {
  const size_t classes = layers_.back().outputs;
  double loss = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const float* z = logits_.data() + i * classes;
    float* p = probabilities_.data() + i * classes;
    const float largest = *std::max_element(z, z + classes);
    double sum = 0;
    for (size_t c = 0; c < classes; ++c) {
      p[c] = std::exp(z[c] - largest);
      sum += p[c];
    }
    for (size_t c = 0; c < classes; ++c) {
      p[c] = static_cast<float>(p[c] / sum);
    }
    loss += std::log(sum) + largest - z[labels[i]];
  }
  return loss / static_cast<double>(labels.size());
}

size_t Network::correct(std::span<const uint8_t> labels) const {
  const size_t classes = layers_.back().outputs;
  size_t count = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const float* z = logits_.data() + i * classes;
    count += static_cast<size_t>(std::max_element(z, z + classes) - z) == labels[i];
  }
  return count;
}

void Network::backward(std::span<const uint8_t> labels, const GradientReady& ready) {
  const size_t batch = labels.size();
  const size_t classes = layers_.back().outputs;
  const float scale = 1.0f / static_cast<float>(batch);
  for (size_t i = 0; i < batch; ++i) {
    for (size_t c = 0; c < classes; ++c) {
      const float target = c == labels[i] ? 1.0f : 0.0f;
      delta_[i * classes + c] = (probabilities_[i * classes + c] - target) * scale;
    }
  }
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    // Gradients first, so that they can leave while the next layer's delta is computed.
    layer_gradients(layer, batch);
    ready(layer.weight + 1);
    ready(layer.weight);
    if (l > 0 || !convolutions_.empty()) {
      propagate(layer, next_delta_, batch);
      std::swap(delta_, next_delta_);
    }
  }
  backward_convolutions(batch, ready);
}

void Network::backward_convolutions(size_t batch, const GradientReady& ready) {
  for (size_t k = convolutions_.size(); k-- > 0;) {
    const auto weight = static_cast<ParamId>(2 * k);
    convolutions_[k].gradients(delta_, batch, gradient_[weight], gradient_[weight + 1]);
    ready(weight + 1);
    ready(weight);
    if (k > 0) {  // behind a ReLU its own block knows what passed
      convolutions_[k].propagate(value_[weight], batch, next_delta_);
      std::swap(delta_, next_delta_);
    }
  }
}

void Network::layer_gradients(Layer& layer, size_t batch) {
  const std::span<float> weight = gradient_[layer.weight], bias = gradient_[layer.weight + 1];
  std::fill(bias.begin(), bias.end(), 0.0f);
  for (size_t i = 0; i < batch; ++i) {
    for (size_t j = 0; j < layer.outputs; ++j) {
      bias[j] += delta_[i * layer.outputs + j];
    }
  }
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, dimension(layer.outputs),
              dimension(layer.inputs), dimension(batch), 1.0f, delta_.data(),
              dimension(layer.outputs), layer.input.data(), dimension(layer.inputs), 0.0f,
              weight.data(), dimension(layer.inputs));
}

void Network::propagate(const Layer& layer, std::span<float> out, size_t batch) const {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, dimension(batch), dimension(layer.inputs),
              dimension(layer.outputs), 1.0f, delta_.data(), dimension(layer.outputs),
              value_[layer.weight].data(), dimension(layer.inputs), 0.0f, out.data(),
              dimension(layer.inputs));
  for (size_t i = 0; i < batch * layer.inputs; ++i) {
    out[i] = layer.input[i] > 0.0f ? out[i] : 0.0f;  // ReLU passes what was positive
  }
}

}  // namespace trainer
