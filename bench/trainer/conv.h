#pragma once
// A convolution of 3x3 with zeros around, ReLU and the maximum of 2x2: half as many rows and
// columns.

#include <cstddef>
#include <cstdint>
#include <span>

#include "bench/trainer/math.h"

namespace trainer {

/// z[o] = bias[o] + sum over input channels and the 9 places of W[o] times the image around the
/// pixel; out = maximum of ReLU(z) over 2x2 pixels, an odd last row or column being left out.
/// W is [outputs, 9 * channels], the 9 places of a channel row by row, one channel after another.
/// All buffers are allocated by the constructor; sums are in a fixed order.
class ConvBlock {
 public:
  /// `math` outlives it. @throws gradwire::InvalidArgument for no output or for images below 2x2.
  ConvBlock(const ConvShape& shape, size_t max_batch, Math& math);

  ImageShape out() const { return shape_.out(); }
  /// Of the buffers that the constructor allocates, on a CPU.
  static size_t count_bytes(const ConvShape& shape, size_t max_batch);

  /// max_batch examples, which the caller writes before forward().
  std::span<float> input() { return input_.span(); }

  /// Writes `batch` examples of out().
  void forward(const Weights& weights, size_t batch, std::span<float> out);

  /// From d loss / d out of the last forward(): the gradients of weight and bias, overwritten.
  void gradients(std::span<const float> delta, size_t batch, const WeightGradients& out);
  /// Behind gradients(): d loss / d input, overwritten.
  void propagate(std::span<const float> weight, size_t batch, std::span<float> in_delta);

 private:
  ConvBatch batch_of(size_t examples) {
    return {examples, input_.span(), largest_.span(), scratch_.span()};
  }

  ConvShape shape_;
  Math* math_;
  Array<float> input_;       // max_batch x in
  Array<uint32_t> largest_;  // max_batch x out
  Array<float> scratch_;
};

}  // namespace trainer
