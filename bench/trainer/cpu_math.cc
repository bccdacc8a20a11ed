#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/trainer/math.h"

namespace trainer {
namespace {

blasint dimension(size_t value) { return static_cast<blasint>(value); }

struct Factor {
  const float* x;
  bool transposed;
};

struct ProductSize {
  size_t m, n, k;
};

// c = a b + beta c, row by row; a is [m, k] or, transposed, [k, m], b [k, n] or [n, k].
void multiply(const ProductSize& size, Factor a, Factor b, float beta, float* c) {
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
              b.transposed ? CblasTrans : CblasNoTrans, dimension(size.m), dimension(size.n),
              dimension(size.k), 1.0f, a.x, dimension(a.transposed ? size.m : size.k), b.x,
              dimension(b.transposed ? size.k : size.n), beta, c, dimension(size.n));
}

// Calls body(row of columns, its first pixel, first image pixel, how many) for every run of pixels
// that place (dy, dx) of the 3x3 takes from inside of the image.
template <class Body>
void for_each_run(const ImageShape& shape, const Body& body) {
  for (size_t c = 0; c < shape.channels; ++c) {
    for (size_t place = 0; place < 9; ++place) {
      const size_t dy = place / 3, dx = place % 3;  // 1 is the pixel itself
      const size_t first = dx == 0 ? 1 : 0;
      const size_t count = shape.columns - (dx == 1 ? 0 : 1);
      for (size_t y = dy == 0 ? 1 : 0; y < shape.rows && y + dy <= shape.rows; ++y) {
        const size_t from = (c * shape.rows + y + dy - 1) * shape.columns + first + dx - 1;
        body(c * 9 + place, y * shape.columns + first, from, count);
      }
    }
  }
}

// The image's columns for the product with W: [9 * channels, pixels].
void unfold(const ConvShape& shape, const float* image, std::span<float> columns) {
  std::fill(columns.begin(), columns.end(), 0.0f);
  for_each_run(shape.in, [&](size_t row, size_t to, size_t from, size_t count) {
    std::copy_n(image + from, count, columns.data() + row * shape.pixels() + to);
  });
}

// The reverse, adding up where places overlap.
void fold(const ConvShape& shape, std::span<const float> columns, float* image) {
  std::fill_n(image, shape.in.size(), 0.0f);
  for_each_run(shape.in, [&](size_t row, size_t to, size_t from, size_t count) {
    const float* const column = columns.data() + row * shape.pixels() + to;
    for (size_t i = 0; i < count; ++i) {
      image[from + i] += column[i];
    }
  });
}

// ConvBatch::scratch.
struct ConvScratch {
  ConvScratch(const ConvShape& shape, std::span<float> all)
      : columns(all.first(9 * shape.in.channels * shape.pixels())),
        z(all.subspan(columns.size(), shape.z())),
        delta(all.subspan(columns.size() + z.size())) {}
  std::span<float> columns;  // of one example
  std::span<float> z;        // of one example
  std::span<float> delta;    // examples x z
};

class CpuExamples final : public Examples {
 public:
  CpuExamples(const LabelledImages& images, const Standardiser& standardise, size_t most)
      : images_(images), standardise_(standardise), labels_(most) {}

  size_t count() const override { return images_.count; }
  std::span<const uint8_t> take(std::span<const uint32_t> indices,
                                std::span<float> inputs) override {
    const std::span<uint8_t> labels = std::span(labels_).first(indices.size());
    gather_examples(images_, standardise_, indices, inputs, labels);
    return labels;
  }

 private:
  const LabelledImages& images_;
  const Standardiser standardise_;
  std::vector<uint8_t> labels_;
};

class CpuMath final : public Math {
 public:
  gradwire::Device device() const override { return {}; }

  void read(std::span<const std::byte> from, std::span<std::byte> to_host) override {
    std::copy(from.begin(), from.end(), to_host.begin());
  }
  void write(std::span<const std::byte> from_host, std::span<std::byte> to) override {
    std::copy(from_host.begin(), from_host.end(), to.begin());
  }
  std::unique_ptr<Examples> examples(const LabelledImages& images, const Standardiser& standardise,
                                     size_t most) override {
    return std::make_unique<CpuExamples>(images, standardise, most);
  }

  void forward(const LayerShape& shape, const Weights& weights, std::span<const float> x,
               Activation activation, std::span<float> out) override {
    const size_t batch = out.size() / shape.outputs;
    for (size_t i = 0; i < batch; ++i) {
      std::copy(weights.bias.begin(), weights.bias.end(), out.begin() + i * shape.outputs);
    }
    multiply({batch, shape.outputs, shape.inputs}, {x.data(), false}, {weights.weight.data(), true},
             1.0f, out.data());
    if (activation == Activation::kRelu) {
      for (float& z : out) {
        z = z > 0.0f ? z : 0.0f;
      }
    }
  }

  void gradients(const LayerShape& shape, std::span<const float> x, std::span<const float> delta,
                 const WeightGradients& out) override {
    const size_t batch = delta.size() / shape.outputs;
    std::fill(out.bias.begin(), out.bias.end(), 0.0f);
    for (size_t i = 0; i < batch; ++i) {
      for (size_t j = 0; j < shape.outputs; ++j) {
        out.bias[j] += delta[i * shape.outputs + j];
      }
    }
    multiply({shape.outputs, shape.inputs, batch}, {delta.data(), true}, {x.data(), false}, 0.0f,
             out.weight.data());
  }

  void propagate(const LayerShape& shape, std::span<const float> weight, std::span<const float> x,
                 std::span<const float> delta, std::span<float> out) override {
    const size_t batch = delta.size() / shape.outputs;
    multiply({batch, shape.inputs, shape.outputs}, {delta.data(), false}, {weight.data(), false},
             0.0f, out.data());
    for (size_t i = 0; i < batch * shape.inputs; ++i) {
      out[i] = x[i] > 0.0f ? out[i] : 0.0f;  // ReLU passes what was positive
    }
  }

  size_t conv_scratch(const ConvShape& shape, size_t max_batch) const override {
    return 9 * shape.in.channels * shape.pixels() + (1 + max_batch) * shape.z();
  }

  void forward(const ConvShape& shape, const Weights& weights, const ConvBatch& batch,
               std::span<float> out) override {
    const ConvScratch scratch(shape, batch.scratch);
    for (size_t example = 0; example < batch.examples; ++example) {
      unfold(shape, batch.input.data() + example * shape.in.size(), scratch.columns);
      multiply({shape.outputs, shape.pixels(), 9 * shape.in.channels},
               {weights.weight.data(), false}, {scratch.columns.data(), false}, 0.0f,
               scratch.z.data());
      take_largest(shape, weights.bias, scratch.z, example, batch, out);
    }
  }

  void gradients(const ConvShape& shape, const ConvBatch& batch, std::span<const float> delta,
                 const WeightGradients& out) override {
    const ConvScratch scratch(shape, batch.scratch);
    const size_t small = shape.out().size(), per_output = small / shape.outputs;
    std::fill(out.weight.begin(), out.weight.end(), 0.0f);
    std::fill(out.bias.begin(), out.bias.end(), 0.0f);
    std::fill_n(scratch.delta.begin(), batch.examples * shape.z(), 0.0f);
    for (size_t example = 0; example < batch.examples; ++example) {
      float* const dz = scratch.delta.data() + example * shape.z();
      for (size_t i = 0; i < small; ++i) {
        const uint32_t from = batch.largest[example * small + i];
        if (from != ConvBatch::kNone) {
          dz[from] = delta[example * small + i];
          out.bias[i / per_output] += delta[example * small + i];
        }
      }
      unfold(shape, batch.input.data() + example * shape.in.size(), scratch.columns);
      multiply({shape.outputs, 9 * shape.in.channels, shape.pixels()}, {dz, false},
               {scratch.columns.data(), true}, 1.0f, out.weight.data());
    }
  }

  void propagate(const ConvShape& shape, std::span<const float> weight, const ConvBatch& batch,
                 std::span<float> in_delta) override {
    const ConvScratch scratch(shape, batch.scratch);
    for (size_t example = 0; example < batch.examples; ++example) {
      multiply({9 * shape.in.channels, shape.pixels(), shape.outputs}, {weight.data(), true},
               {scratch.delta.data() + example * shape.z(), false}, 0.0f, scratch.columns.data());
      fold(shape, scratch.columns, in_delta.data() + example * shape.in.size());
    }
  }

  void cross_entropy(std::span<const float> logits, std::span<const uint8_t> labels,
                     std::span<float> probabilities, std::span<BatchResult> result) override {
    const size_t classes = logits.size() / labels.size();
    double loss = 0;
    uint64_t correct = 0;
    for (size_t i = 0; i < labels.size(); ++i) {
      const float* z = logits.data() + i * classes;
      float* p = probabilities.data() + i * classes;
      const float* const largest = std::max_element(z, z + classes);
      double sum = 0;
      for (size_t c = 0; c < classes; ++c) {
        p[c] = std::exp(z[c] - *largest);
        sum += p[c];
      }
      for (size_t c = 0; c < classes; ++c) {
        p[c] = static_cast<float>(p[c] / sum);
      }
      loss += std::log(sum) + *largest - z[labels[i]];
      correct += static_cast<size_t>(largest - z) == labels[i];
    }
    result[0] = {loss / static_cast<double>(labels.size()), correct};
  }

  void cross_entropy_gradient(std::span<const float> probabilities, std::span<const uint8_t> labels,
                              std::span<float> delta) override {
    const size_t classes = probabilities.size() / labels.size();
    const float scale = 1.0f / static_cast<float>(labels.size());
    for (size_t i = 0; i < labels.size(); ++i) {
      for (size_t c = 0; c < classes; ++c) {
        const float target = c == labels[i] ? 1.0f : 0.0f;
        delta[i * classes + c] = (probabilities[i * classes + c] - target) * scale;
      }
    }
  }

 private:
  static void take_largest(const ConvShape& shape, std::span<const float> bias,
                           std::span<const float> z, size_t example, const ConvBatch& batch,
                           std::span<float> out) {
    const ImageShape in = shape.in, small = shape.out();
    for (size_t i = 0; i < small.size(); ++i) {
      const size_t o = i / (small.rows * small.columns);
      const size_t y = i / small.columns % small.rows, x = i % small.columns;
      const size_t corner = (o * in.rows + 2 * y) * in.columns + 2 * x;
      size_t best = corner;
      for (const size_t other : {corner + 1, corner + in.columns, corner + in.columns + 1}) {
        best = z[other] > z[best] ? other : best;
      }
      const float value = z[best] + bias[o];
      const bool passes = value > 0.0f;
      out[example * small.size() + i] = passes ? value : 0.0f;
      batch.largest[example * small.size() + i] =
          passes ? static_cast<uint32_t>(best) : ConvBatch::kNone;
    }
  }
};

}  // namespace

void set_math_threads(int threads) { openblas_set_num_threads(threads); }

std::unique_ptr<Math> make_cpu_math() { return std::make_unique<CpuMath>(); }

Math& cpu_math() {
  static CpuMath math;
  return math;
}

std::unique_ptr<Math> make_math(gradwire::Stream& stream) {
  return stream.device().type == gradwire::DeviceType::kCpu ? make_cpu_math()
                                                            : make_cuda_math(stream);
}

}  // namespace trainer
