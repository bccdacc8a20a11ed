#include <array>
#include <cstring>

#include "bench/trainer/math.cuh"
#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/pinned.h"

namespace trainer {
namespace {

using namespace cuda;
using gradwire::Stream;
using gradwire::cuda::LaunchShape;

uint32_t dimension(size_t value) { return static_cast<uint32_t>(value); }

Planes planes_of(const ImageShape& image) {
  return {dimension(image.channels), dimension(image.rows), dimension(image.columns)};
}

/// A thread for each of `count`.
LaunchShape shape_for(size_t count, Stream& stream) {
  return {(count + kThreads - 1) / kThreads, kThreads, stream};
}

/// Images whose pixels are in the GPU's memory: of a batch only the numbers of its images travel,
/// from pinned slots that are written again once the GPU has passed them.
class CudaExamples final : public Examples {
 public:
  CudaExamples(const LabelledImages& images, const Standardiser& standardise, size_t most,
               Stream& stream)
      : stream_(stream),
        count_(images.count),
        features_(images.features()),
        plane_(images.plane()),
        most_(most),
        pixels_(images.pixels.size(), stream.device()),
        labels_(images.labels.size(), stream.device()),
        standardised_(images.channels * 256 * sizeof(float), stream.device()),
        indices_(most * sizeof(uint32_t), stream.device()),
        taken_(most, stream.device()),
        slots_(kExamplesAhead * most * sizeof(uint32_t)) {
    for (std::unique_ptr<gradwire::Event>& passed : passed_) {
      passed = gradwire::make_event(stream.device());
    }
    upload(pixels_, std::as_bytes(std::span(images.pixels)));
    upload(labels_, std::as_bytes(std::span(images.labels)));
    std::vector<float> table;
    for (size_t c = 0; c < images.channels; ++c) {
      for (size_t pixel = 0; pixel < 256; ++pixel) {
        table.push_back(standardise(static_cast<uint8_t>(pixel), c));
      }
    }
    upload(standardised_, std::as_bytes(std::span(table)));
    stream_.wait();  // they are read until then
  }

  ~CudaExamples() override {
    try {
      stream_.wait();  // the slots must not go before the GPU has passed them
    } catch (const gradwire::DeviceError&) {
      // It does nothing any more then, and whoever waits for the stream next is told.
    }
  }

  size_t count() const override { return count_; }

  std::span<const uint8_t> take(std::span<const uint32_t> indices,
                                std::span<float> inputs) override {
    gradwire::check(indices.size() <= most_, "examples: ", indices.size(),
                    " are asked for, at most ", most_, " were announced");
    const size_t at = calls_++ % kExamplesAhead;
    if (!passed_[at]->passed()) {
      stream_.wait();
    }
    const std::span<std::byte> slot =
        slots_.bytes().subspan(at * most_ * sizeof(uint32_t), indices.size_bytes());
    std::memcpy(slot.data(), indices.data(), slot.size());
    gradwire::copy_bytes(indices_.bytes().first(slot.size()), stream_.device(), slot, {}, stream_);
    passed_[at]->record(stream_);
    const StoredImages from{pixels_.as<uint8_t>().data(), labels_.as<uint8_t>().data(),
                            standardised_.as<float>().data(), features_, plane_};
    GRADWIRE_LAUNCH(take_examples_kernel, shape_for(indices.size() * features_, stream_), from,
                    indices_.as<uint32_t>().data(), indices.size(), inputs.data(),
                    taken_.as<uint8_t>().data());
    return taken_.as<uint8_t>().first(indices.size());
  }

 private:
  void upload(const gradwire::Buffer& to, std::span<const std::byte> from) {
    gradwire::copy_bytes(to.bytes(), stream_.device(), from, {}, stream_);
  }

  Stream& stream_;
  const size_t count_, features_, plane_, most_;
  const gradwire::Buffer pixels_, labels_, standardised_, indices_, taken_;
  const gradwire::PinnedBuffer slots_;
  std::array<std::unique_ptr<gradwire::Event>, kExamplesAhead> passed_;  // that a slot was read
  size_t calls_ = 0;
};

class CudaMath final : public Math {
 public:
  explicit CudaMath(Stream& stream) : stream_(stream) {
    gradwire::cuda::check_cuda_stream("cuda math", stream);
  }

  gradwire::Device device() const override { return stream_.device(); }

  void read(std::span<const std::byte> from, std::span<std::byte> to_host) override {
    gradwire::copy_bytes(to_host, {}, from, device(), stream_);
    stream_.wait();
  }
  void write(std::span<const std::byte> from_host, std::span<std::byte> to) override {
    gradwire::copy_bytes(to, device(), from_host, {}, stream_);
    stream_.wait();
  }
  std::unique_ptr<Examples> examples(const LabelledImages& images, const Standardiser& standardise,
                                     size_t most) override {
    return std::make_unique<CudaExamples>(images, standardise, most, stream_);
  }

  void forward(const LayerShape& shape, const Weights& weights, std::span<const float> x,
               Activation activation, std::span<float> out) override {
    const uint32_t inputs = dimension(shape.inputs), outputs = dimension(shape.outputs);
    multiply({dimension(out.size() / shape.outputs), outputs, inputs}, Matrix{x.data(), inputs},
             Transposed{weights.weight.data(), inputs},
             StoreActivation{out.data(), weights.bias.data(), outputs, activation});
  }

  void gradients(const LayerShape& shape, std::span<const float> x, std::span<const float> delta,
                 const WeightGradients& out) override {
    const uint32_t inputs = dimension(shape.inputs), outputs = dimension(shape.outputs);
    const size_t batch = delta.size() / shape.outputs;
    add_columns(delta, batch, out.bias);
    multiply({outputs, inputs, dimension(batch)}, Transposed{delta.data(), outputs},
             Matrix{x.data(), inputs}, Store{out.weight.data(), inputs});
  }

  void propagate(const LayerShape& shape, std::span<const float> weight, std::span<const float> x,
                 std::span<const float> delta, std::span<float> out) override {
    const uint32_t inputs = dimension(shape.inputs), outputs = dimension(shape.outputs);
    multiply({dimension(delta.size() / shape.outputs), inputs, outputs},
             Matrix{delta.data(), outputs}, Matrix{weight.data(), inputs},
             StorePassed{out.data(), x.data(), inputs});
  }

  // z of all examples, in whose place dz comes; each example's part of the weights' gradient.
  size_t conv_scratch(const ConvShape& shape, size_t max_batch) const override {
    return max_batch * (shape.z() + shape.weights());
  }

  void forward(const ConvShape& shape, const Weights& weights, const ConvBatch& batch,
               std::span<float> out) override {
    const uint32_t pixels = dimension(shape.pixels()), terms = kPlaces * channels(shape);
    float* const z = batch.scratch.data();
    multiply({dimension(shape.outputs), pixels, terms}, Matrix{weights.weight.data(), terms},
             Unfolded{batch.input.data(), planes_of(shape.in)}, Store{z, pixels, shape.z()},
             batch.examples);
    GRADWIRE_LAUNCH(pool_kernel, shape_for(batch.examples * shape.out().size(), stream_), z,
                    weights.bias.data(), planes_of_z(shape), batch.examples * shape.outputs,
                    out.data(), batch.largest.data());
  }

  void gradients(const ConvShape& shape, const ConvBatch& batch, std::span<const float> delta,
                 const WeightGradients& out) override {
    const uint32_t pixels = dimension(shape.pixels()), places = kPlaces * channels(shape);
    float* const dz = batch.scratch.data();
    float* const parts = dz + batch.examples * shape.z();
    GRADWIRE_LAUNCH(unpool_kernel, shape_for(batch.examples * shape.z(), stream_), delta.data(),
                    batch.largest.data(), planes_of_z(shape), batch.examples * shape.outputs, dz);
    GRADWIRE_LAUNCH(channel_sums_kernel, (LaunchShape{shape.outputs, kThreads, stream_}), dz,
                    batch.examples, shape.pixels(), out.bias.data());
    multiply({dimension(shape.outputs), places, pixels}, Matrix{dz, pixels, shape.z()},
             UnfoldedTransposed{{batch.input.data(), planes_of(shape.in)}},
             Store{parts, places, shape.weights()}, batch.examples);
    add_columns({parts, batch.examples * shape.weights()}, batch.examples, out.weight);
  }

  void propagate(const ConvShape& shape, std::span<const float> weight, const ConvBatch& batch,
                 std::span<float> in_delta) override {
    const uint32_t pixels = dimension(shape.pixels());
    multiply({channels(shape), pixels, kPlaces * dimension(shape.outputs)},
             Mirrored{weight.data(), channels(shape)},
             Unfolded{batch.scratch.data(), planes_of_z(shape)},
             Store{in_delta.data(), pixels, shape.in.size()}, batch.examples);
  }

  void cross_entropy(std::span<const float> logits, std::span<const uint8_t> labels,
                     std::span<float> probabilities, std::span<BatchResult> result) override {
    GRADWIRE_LAUNCH(cross_entropy_kernel, (LaunchShape{1, kThreads, stream_}), logits.data(),
                    labels.data(), labels.size(), logits.size() / labels.size(),
                    probabilities.data(), result.data());
  }

  void cross_entropy_gradient(std::span<const float> probabilities, std::span<const uint8_t> labels,
                              std::span<float> delta) override {
    GRADWIRE_LAUNCH(cross_entropy_gradient_kernel, shape_for(probabilities.size(), stream_),
                    probabilities.data(), labels.data(), labels.size(),
                    probabilities.size() / labels.size(), delta.data());
  }

 private:
  static uint32_t channels(const ConvShape& shape) { return dimension(shape.in.channels); }
  static Planes planes_of_z(const ConvShape& shape) {
    return planes_of({shape.outputs, shape.in.rows, shape.in.columns});
  }

  template <class A, class B, class Out>
  void multiply(const ProductSize& size, const A& a, const B& b, const Out& out,
                size_t examples = 1) {
    const size_t down = (size.m + kTile - 1) / kTile, across = (size.n + kTile - 1) / kTile;
    GRADWIRE_LAUNCH((product_kernel<A, B, Out>),
                    (LaunchShape{examples * down * across, kThreads, stream_}), size, a, b, out);
  }

  void add_columns(std::span<const float> x, size_t rows, std::span<float> out) {
    GRADWIRE_LAUNCH(column_sums_kernel, shape_for(out.size(), stream_), x.data(), rows, out.size(),
                    out.data());
  }

  Stream& stream_;
};

}  // namespace

std::unique_ptr<Math> make_cuda_math(Stream& stream) { return std::make_unique<CudaMath>(stream); }

}  // namespace trainer
