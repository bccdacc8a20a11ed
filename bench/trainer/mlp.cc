#include "bench/trainer/mlp.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
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

size_t Mlp::count_parameters(std::span<const size_t> widths) {
  size_t total = 0;
  for (size_t l = 0; l + 1 < widths.size(); ++l) {
    total += widths[l + 1] * (widths[l] + 1);
  }
  return total;
}

size_t Mlp::count_bytes(std::span<const size_t> widths, size_t max_batch) {
  // Each layer's input, then logits and probabilities, and two times the widest for the deltas.
  const size_t widest = *std::max_element(widths.begin(), widths.end());
  const size_t row = std::accumulate(widths.begin(), widths.end(), widths.back() + 2 * widest);
  return (count_parameters(widths) + max_batch * row) * sizeof(float);
}

Mlp::Mlp(std::vector<size_t> widths, size_t max_batch) : max_batch_(max_batch) {
  check(widths.size() >= 2, "mlp: ", widths.size(),
        " widths, expected inputs and classes at least");
  check(max_batch > 0, "mlp: batch is 0, must be at least 1");
  for (size_t l = 0; l + 1 < widths.size(); ++l) {
    check(widths[l] > 0 && widths[l + 1] > 0, "mlp: width of layer ", l, " is 0, must be positive");
  }
  values_.resize(count_parameters(widths));
  size_t offset = 0;
  for (size_t l = 0; l + 1 < widths.size(); ++l) {
    Layer layer;
    layer.inputs = widths[l];
    layer.outputs = widths[l + 1];
    layer.weight = std::span(values_).subspan(offset, layer.inputs * layer.outputs);
    layer.bias = std::span(values_).subspan(offset + layer.weight.size(), layer.outputs);
    layer.input.resize(max_batch * layer.inputs);
    offset += layer.weight.size() + layer.bias.size();
    parameters_.push_back({concat("layer", l, ".weight"), {layer.outputs, layer.inputs}});
    parameters_.push_back({concat("layer", l, ".bias"), {layer.outputs}});
    layers_.push_back(std::move(layer));
  }
  const size_t widest = *std::max_element(widths.begin(), widths.end());
  logits_.resize(max_batch * widths.back());
  probabilities_.resize(logits_.size());
  delta_.resize(max_batch * widest);
  next_delta_.resize(max_batch * widest);
}

void Mlp::initialise(uint64_t seed) {
  Random random(seed, 0);
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    // Uniform rather than normal: no libm function whose last bit could differ between machines.
    double bound = std::sqrt(6.0 / static_cast<double>(layer.inputs));
    if (l + 1 == layers_.size()) {
      bound *= 0.1;
    }
    for (float& weight : layer.weight) {
      weight = static_cast<float>(bound) * random.symmetric();
    }
    std::fill(layer.bias.begin(), layer.bias.end(), 0.0f);
  }
}

std::span<float> Mlp::value(ParamId p) {
  check(p < parameters_.size(), "mlp: parameter is ", p, ", must be below ", parameters_.size());
  return p % 2 == 0 ? layers_[p / 2].weight : layers_[p / 2].bias;
}

void Mlp::bind_gradient(ParamId p, std::span<float> memory) {
  check(memory.size() == value(p).size(), "mlp: gradient of ", parameters_[p].name, " has ",
        memory.size(), " elements, expected ", value(p).size());
  (p % 2 == 0 ? layers_[p / 2].weight_gradient : layers_[p / 2].bias_gradient) = memory;
}

double Mlp::forward(std::span<const uint8_t> labels) {
  const size_t batch = labels.size();
  check(batch >= 1 && batch <= max_batch_, "mlp: batch is ", batch, ", must be 1 to ", max_batch_);
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

void Mlp::forward_layer(const Layer& layer, std::span<float> out, size_t batch) const {
  for (size_t i = 0; i < batch; ++i) {
    std::copy(layer.bias.begin(), layer.bias.end(), out.begin() + i * layer.outputs);
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, dimension(batch), dimension(layer.outputs),
              dimension(layer.inputs), 1.0f, layer.input.data(), dimension(layer.inputs),
              layer.weight.data(), dimension(layer.inputs), 1.0f, out.data(),
              dimension(layer.outputs));
}

double Mlp::softmax(std::span<const uint8_t> labels) {
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

size_t Mlp::correct(std::span<const uint8_t> labels) const {
  const size_t classes = layers_.back().outputs;
  size_t count = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const float* z = logits_.data() + i * classes;
    count += static_cast<size_t>(std::max_element(z, z + classes) - z) == labels[i];
  }
  return count;
}

void Mlp::backward(std::span<const uint8_t> labels, const GradientReady& ready) {
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
    layer_gradients(layer, delta_, batch);
    ready(static_cast<ParamId>(2 * l + 1));
    ready(static_cast<ParamId>(2 * l));
    if (l > 0) {
      propagate(layer, delta_, next_delta_, batch);
      std::swap(delta_, next_delta_);
    }
  }
}

void Mlp::layer_gradients(Layer& layer, std::span<const float> delta, size_t batch) {
  std::fill(layer.bias_gradient.begin(), layer.bias_gradient.end(), 0.0f);
  for (size_t i = 0; i < batch; ++i) {
    for (size_t j = 0; j < layer.outputs; ++j) {
      layer.bias_gradient[j] += delta[i * layer.outputs + j];
    }
  }
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, dimension(layer.outputs),
              dimension(layer.inputs), dimension(batch), 1.0f, delta.data(),
              dimension(layer.outputs), layer.input.data(), dimension(layer.inputs), 0.0f,
              layer.weight_gradient.data(), dimension(layer.inputs));
}

void Mlp::propagate(const Layer& layer, std::span<const float> delta, std::span<float> out,
                    size_t batch) const {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, dimension(batch), dimension(layer.inputs),
              dimension(layer.outputs), 1.0f, delta.data(), dimension(layer.outputs),
              layer.weight.data(), dimension(layer.inputs), 0.0f, out.data(),
              dimension(layer.inputs));
  for (size_t i = 0; i < batch * layer.inputs; ++i) {
    out[i] = layer.input[i] > 0.0f ? out[i] : 0.0f;  // ReLU passes what was positive
  }
}

}  // namespace trainer
