#pragma once
// What a network computes with: the operations of its layers on one device. All memory is the
// device's; on a GPU every call but read() and write() is enqueued on one stream and nothing waits.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench/trainer/data.h"
#include "gradwire/kernels/core/memory.h"

namespace trainer {

/// Of an example: channel by channel, row by row.
struct ImageShape {
  size_t channels = 1;
  size_t rows = 0;
  size_t columns = 0;

  size_t size() const { return channels * rows * columns; }
};

/// `count` elements, zero at first, in the memory of a device.
template <class T>
class Array {
 public:
  Array() = default;
  Array(size_t count, gradwire::Device device) {
    if (device.type == gradwire::DeviceType::kCpu) {
      host_.resize(count);
    } else {
      there_ = gradwire::Buffer(count * sizeof(T), device);
    }
  }
  std::span<T> span() { return host_.empty() ? there_.as<T>() : std::span<T>(host_); }

 private:
  std::vector<T> host_;
  gradwire::Buffer there_;
};

/// What a forward pass found over its batch.
struct BatchResult {
  double loss = 0;       ///< mean cross-entropy
  uint64_t correct = 0;  ///< rows whose largest logit, the first of equal ones, is at their label
};

struct LayerShape {
  size_t inputs = 0;
  size_t outputs = 0;
};

/// A convolution of 3x3 with zeros around, ReLU and the maximum of 2x2 (conv.h).
struct ConvShape {
  ImageShape in;
  size_t outputs = 0;

  size_t pixels() const { return in.rows * in.columns; }
  size_t z() const { return outputs * pixels(); }  ///< before the maximum
  size_t weights() const { return outputs * 9 * in.channels; }
  ImageShape out() const { return {outputs, in.rows / 2, in.columns / 2}; }
};

struct Weights {
  std::span<const float> weight, bias;
};
struct WeightGradients {
  std::span<float> weight, bias;
};

/// A convolution's batch, and what its passes keep for each other.
struct ConvBatch {
  size_t examples = 0;
  std::span<const float> input;  // examples x in
  std::span<uint32_t> largest;   // examples x out: the element of z it came from, kNone below 0
  std::span<float> scratch;      // Math::conv_scratch() elements

  static constexpr uint32_t kNone = ~uint32_t{0};
};

enum class Activation : uint8_t { kNone, kRelu };

/// Labelled images of which a network takes some.
class Examples {
 public:
  virtual ~Examples() = default;
  virtual size_t count() const = 0;
  /// Writes the standardised pixels of the images `indices`, at most as many as were asked for, to
  /// `inputs`. @returns their labels, valid until the next call; both on the Math's device. On a
  /// GPU it waits only where the kExamplesAhead calls before it are all under way.
  virtual std::span<const uint8_t> take(std::span<const uint32_t> indices,
                                        std::span<float> inputs) = 0;
};
inline constexpr size_t kExamplesAhead = 16;

class Math {
 public:
  virtual ~Math() = default;
  virtual gradwire::Device device() const = 0;

  /// Between the device's memory and the host's; both wait until it is done.
  virtual void read(std::span<const std::byte> from, std::span<std::byte> to_host) = 0;
  virtual void write(std::span<const std::byte> from_host, std::span<std::byte> to) = 0;
  /// For batches of at most `most`. `images` outlive it.
  virtual std::unique_ptr<Examples> examples(const LabelledImages& images,
                                             const Standardiser& standardise, size_t most) = 0;

  /// out = x W^T + b, and what is not positive becomes 0 with kRelu. W is [outputs, inputs],
  /// x [batch, inputs], out [batch, outputs].
  virtual void forward(const LayerShape& shape, const Weights& weights, std::span<const float> x,
                       Activation activation, std::span<float> out) = 0;
  /// From delta = d loss / d out [batch, outputs]: the gradients of W and b, overwritten.
  virtual void gradients(const LayerShape& shape, std::span<const float> x,
                         std::span<const float> delta, const WeightGradients& out) = 0;
  /// out = delta W where x is positive, else 0: d loss / d z of the layer before.
  virtual void propagate(const LayerShape& shape, std::span<const float> weight,
                         std::span<const float> x, std::span<const float> delta,
                         std::span<float> out) = 0;

  /// Elements of ConvBatch::scratch for batches of at most `max_batch`.
  virtual size_t conv_scratch(const ConvShape& shape, size_t max_batch) const = 0;
  /// out [examples x out()], and ConvBatch::largest.
  virtual void forward(const ConvShape& shape, const Weights& weights, const ConvBatch& batch,
                       std::span<float> out) = 0;
  /// From d loss / d out of the last forward(): the gradients of W and b, overwritten.
  virtual void gradients(const ConvShape& shape, const ConvBatch& batch,
                         std::span<const float> delta, const WeightGradients& out) = 0;
  /// Behind gradients(): d loss / d input [examples x in], overwritten.
  virtual void propagate(const ConvShape& shape, std::span<const float> weight,
                         const ConvBatch& batch, std::span<float> in_delta) = 0;

  /// Softmax cross-entropy of logits [batch, classes]: the probabilities, and one result.
  virtual void cross_entropy(std::span<const float> logits, std::span<const uint8_t> labels,
                             std::span<float> probabilities, std::span<BatchResult> result) = 0;
  /// delta = d mean cross-entropy / d logits.
  virtual void cross_entropy_gradient(std::span<const float> probabilities,
                                      std::span<const uint8_t> labels, std::span<float> delta) = 0;
};

/// OpenBLAS and loops; it keeps nothing, so that threads may share one.
std::unique_ptr<Math> make_cpu_math();
Math& cpu_math();

/// Kernels on this CUDA stream, which outlives it. Sums are in a fixed order.
/// @throws gradwire::DeviceError in a build without device code.
std::unique_ptr<Math> make_cuda_math(gradwire::Stream& stream);

/// Of the stream's device.
std::unique_ptr<Math> make_math(gradwire::Stream& stream);

/// Threads of every matrix product in this process.
void set_math_threads(int threads);

}  // namespace trainer
