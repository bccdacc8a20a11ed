#pragma once
// A convolution of 3x3 with zeros around, ReLU and the maximum of 2x2: half as many rows and
// columns.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trainer {

/// Of an example: channel by channel, row by row.
struct ImageShape {
  size_t channels = 1;
  size_t rows = 0;
  size_t columns = 0;

  size_t size() const { return channels * rows * columns; }
};

/// z[o] = bias[o] + sum over input channels and the 9 places of W[o] times the image around the
/// pixel; out = maximum of ReLU(z) over 2x2 pixels, an odd last row or column being left out.
/// W is [outputs, 9 * channels], the 9 places of a channel row by row, one channel after another.
/// All buffers are allocated by the constructor; sums are in a fixed order.
class ConvBlock {
 public:
  /// @throws gradwire::InvalidArgument for no output or for images below 2x2.
  ConvBlock(ImageShape in, size_t outputs, size_t max_batch);

  const ImageShape& in() const { return in_; }
  ImageShape out() const { return {outputs_, in_.rows / 2, in_.columns / 2}; }
  size_t weights() const { return outputs_ * 9 * in_.channels; }
  /// Of the buffers that the constructor allocates.
  static size_t count_bytes(ImageShape in, size_t outputs, size_t max_batch);

  /// max_batch examples of in(), which the caller writes before forward().
  std::span<float> input() { return input_; }

  /// Writes `batch` examples of out().
  void forward(std::span<const float> weight, std::span<const float> bias, size_t batch,
               std::span<float> out);

  /// From d loss / d out of the last forward(): the gradients of weight and bias, overwritten.
  void gradients(std::span<const float> delta, size_t batch, std::span<float> weight_gradient,
                 std::span<float> bias_gradient);
  /// Behind gradients(): d loss / d input, overwritten.
  void propagate(std::span<const float> weight, size_t batch, std::span<float> in_delta);

 private:
  size_t pixels() const { return in_.rows * in_.columns; }
  /// The image's columns for the product with W: [9 * channels, pixels].
  void unfold(const float* image);
  /// The reverse, adding up where places overlap.
  void fold(float* image) const;

  ImageShape in_;
  size_t outputs_;
  std::vector<float> input_;       // max_batch x in
  std::vector<float> columns_;     // 9 * channels x pixels, of one example
  std::vector<float> z_;           // outputs x pixels, of one example
  std::vector<uint32_t> largest_;  // max_batch x out: the pixel of z it came from, kNone below 0
  std::vector<float> delta_;       // max_batch x outputs x pixels
};

}  // namespace trainer
