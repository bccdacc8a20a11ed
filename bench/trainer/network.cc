#include "bench/trainer/network.h"

#include <algorithm>
#include <array>
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

}  // namespace

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
    convolutions += ConvBlock::count_bytes({image, channels}, max_batch);
    image = {channels, image.rows / 2, image.columns / 2};
  }
  // Each layer's input, then logits and probabilities, and two times the widest for the deltas.
  const std::vector<size_t> all = widths(shape);
  const size_t widest = *std::max_element(all.begin(), all.end());
  const size_t row = std::accumulate(all.begin(), all.end(), all.back() + 2 * widest);
  return (count_parameters(shape) + max_batch * row) * sizeof(float) + convolutions;
}

Network::Network(const NetworkShape& shape, size_t max_batch, Math& math)
    : math_(math), max_batch_(max_batch) {
  check(max_batch > 0, "network: batch is 0, must be at least 1");
  check(shape.classes > 0, "network: there are 0 classes, must be at least 1");
  check(shape.image.size() > 0, "network: images are ", shape.image.channels, " x ",
        shape.image.rows, " x ", shape.image.columns, ", must be at least 1 x 1 x 1");
  // First: of all buffers the one that may be too large.
  values_ = {count_parameters(shape), device()};
  ImageShape image = shape.image;
  size_t widest = 0;
  for (const size_t channels : shape.convolutions) {
    add_parameters(concat("conv", convolutions_.size()), channels, 9 * image.channels);
    widest = std::max(widest, image.size());
    image = convolutions_.emplace_back(ConvShape{image, channels}, max_batch, math).out();
  }
  const std::vector<size_t> all = widths(shape);
  for (size_t l = 0; l + 1 < all.size(); ++l) {
    check(all[l + 1] > 0, "network: width of layer ", l, " is 0, must be positive");
    layers_.push_back({all[l], all[l + 1], static_cast<ParamId>(parameters_.size()),
                       Array<float>(max_batch * all[l], device())});
    add_parameters(concat("layer", l), all[l + 1], all[l]);
  }
  size_t offset = 0;
  for (const gradwire::ParamInfo& info : parameters_) {
    const size_t size =
        std::accumulate(info.shape.begin(), info.shape.end(), size_t{1}, std::multiplies<>());
    value_.push_back(values_.span().subspan(offset, size));
    offset += size;
  }
  gradient_.resize(value_.size());
  widest = std::max(widest, *std::max_element(all.begin(), all.end()));
  logits_ = {max_batch * shape.classes, device()};
  probabilities_ = {max_batch * shape.classes, device()};
  delta_ = {max_batch * widest, device()};
  next_delta_ = {max_batch * widest, device()};
  results_ = {kResults, device()};
}

void Network::add_parameters(const std::string& name, size_t outputs, size_t inputs) {
  parameters_.push_back({name + ".weight", {outputs, inputs}});
  parameters_.push_back({name + ".bias", {outputs}});
}

void Network::initialise(uint64_t seed) {
  Random random(seed, 0);
  std::span<float> left = host_values();
  for (ParamId p = 0; p < parameters_.size(); p += 2) {
    // Uniform rather than normal: no libm function whose last bit could differ between machines.
    double bound = std::sqrt(6.0 / static_cast<double>(parameters_[p].shape[1]));
    if (p + 2 == parameters_.size()) {
      bound *= 0.1;
    }
    for (float& weight : left.first(value_[p].size())) {
      weight = static_cast<float>(bound) * random.symmetric();
    }
    left = left.subspan(value_[p].size());
    std::ranges::fill(left.first(value_[p + 1].size()), 0.0f);
    left = left.subspan(value_[p + 1].size());
  }
  if (!host_values_.empty()) {
    math_.write(std::as_bytes(std::span(host_values_)), std::as_writable_bytes(values_.span()));
  }
}

// Room for all parameters: on a CPU the parameters themselves.
std::span<float> Network::host_values() {
  if (device().type == gradwire::DeviceType::kCpu) {
    return values_.span();
  }
  host_values_.resize(parameter_count());
  return host_values_;
}

std::span<const float> Network::values() {
  const std::span<float> all = host_values();
  if (!host_values_.empty()) {
    math_.read(std::as_bytes(values_.span()), std::as_writable_bytes(all));
  }
  return all;
}

void Network::set_value(ParamId p, std::span<const float> from) {
  const std::span<float> to = value(p);
  check(from.size() == to.size(), "network: value of ", parameters_[p].name, " has ", from.size(),
        " elements, expected ", to.size());
  math_.write(std::as_bytes(from), std::as_writable_bytes(to));
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
    const std::span<float> out =
        k + 1 < convolutions_.size() ? convolutions_[k + 1].input() : layers_.front().input.span();
    convolutions_[k].forward(weights(static_cast<ParamId>(2 * k)), batch, out);
  }
}

void Network::forward(std::span<const uint8_t> labels) {
  const size_t batch = labels.size();
  check(batch >= 1 && batch <= max_batch_, "network: batch is ", batch, ", must be 1 to ",
        max_batch_);
  forward_convolutions(batch);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const bool last = l + 1 == layers_.size();
    const std::span<float> out = last ? logits_.span() : layers_[l + 1].input.span();
    math_.forward(layers_[l].shape(), weights(layers_[l].weight), layers_[l].input.span(),
                  last ? Activation::kNone : Activation::kRelu,
                  out.first(batch * layers_[l].outputs));
  }
  const size_t numel = batch * layers_.back().outputs;
  math_.cross_entropy(logits_.span().first(numel), labels, probabilities_.span().first(numel),
                      results_.span().subspan(passes_++ % kResults, 1));
}

std::vector<BatchResult> Network::last_results(size_t count) {
  check(count <= std::min(passes_, kResults), "network: the results of ", count,
        " passes are asked for, there are ", std::min(passes_, kResults));
  std::array<BatchResult, kResults> ring{};
  math_.read(std::as_bytes(results_.span()), std::as_writable_bytes(std::span(ring)));
  std::vector<BatchResult> found;
  for (size_t pass = passes_ - count; pass < passes_; ++pass) {
    found.push_back(ring[pass % kResults]);
  }
  return found;
}

void Network::backward(std::span<const uint8_t> labels, const GradientReady& ready) {
  const size_t batch = labels.size();
  const size_t numel = batch * layers_.back().outputs;
  math_.cross_entropy_gradient(probabilities_.span().first(numel), labels,
                               delta_.span().first(numel));
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    const std::span<float> delta = delta_.span().first(batch * layer.outputs);
    // Gradients first, so that they can leave while the next layer's delta is computed.
    math_.gradients(layer.shape(), layer.input.span(), delta, gradients(layer.weight));
    ready(layer.weight + 1);
    ready(layer.weight);
    if (l > 0 || !convolutions_.empty()) {
      math_.propagate(layer.shape(), value_[layer.weight], layer.input.span(), delta,
                      next_delta_.span());
      std::swap(delta_, next_delta_);
    }
  }
  backward_convolutions(batch, ready);
}

void Network::backward_convolutions(size_t batch, const GradientReady& ready) {
  for (size_t k = convolutions_.size(); k-- > 0;) {
    const auto weight = static_cast<ParamId>(2 * k);
    convolutions_[k].gradients(delta_.span(), batch, gradients(weight));
    ready(weight + 1);
    ready(weight);
    if (k > 0) {  // behind a ReLU its own block knows what passed
      convolutions_[k].propagate(value_[weight], batch, next_delta_.span());
      std::swap(delta_, next_delta_);
    }
  }
}

}  // namespace trainer
