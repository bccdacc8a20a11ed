#include "bench/trainer/conv.h"

#include "gradwire/kernels/core/error.h"

namespace trainer {

ConvBlock::ConvBlock(const ConvShape& shape, size_t max_batch, Math& math)
    : shape_(shape), math_(&math) {
  const ImageShape& in = shape.in;
  gradwire::check(shape.outputs > 0, "convolution: it has 0 output channels, must be at least 1");
  gradwire::check(in.channels > 0 && in.rows >= 2 && in.columns >= 2, "convolution: images are ",
                  in.channels, " x ", in.rows, " x ", in.columns,
                  ", must be at least 1 x 2 x 2: expected fewer convolutions");
  input_ = {max_batch * in.size(), math.device()};
  largest_ = {max_batch * out().size(), math.device()};
  scratch_ = {math.conv_scratch(shape, max_batch), math.device()};
}

size_t ConvBlock::count_bytes(const ConvShape& shape, size_t max_batch) {
  return sizeof(float) * max_batch * (shape.in.size() + shape.z() / 4) +
         sizeof(float) * cpu_math().conv_scratch(shape, max_batch);
}

void ConvBlock::forward(const Weights& weights, size_t batch, std::span<float> out) {
  math_->forward(shape_, weights, batch_of(batch), out);
}

void ConvBlock::gradients(std::span<const float> delta, size_t batch, const WeightGradients& out) {
  math_->gradients(shape_, batch_of(batch), delta, out);
}

void ConvBlock::propagate(std::span<const float> weight, size_t batch, std::span<float> in_delta) {
  math_->propagate(shape_, weight, batch_of(batch), in_delta);
}

}  // namespace trainer
