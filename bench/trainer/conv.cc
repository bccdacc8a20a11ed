#include "bench/trainer/conv.h"

#include <cblas.h>

#include <algorithm>

#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

constexpr uint32_t kNone = ~uint32_t{0};

blasint dimension(size_t value) { return static_cast<blasint>(value); }

// c = alpha a b + beta c, row by row; a is [m, k] or, transposed, [k, m], b [k, n] or [n, k].
void multiply(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, const float* a,
              const float* b, float beta, float* c) {
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
              transpose_b ? CblasTrans : CblasNoTrans, dimension(m), dimension(n), dimension(k),
              1.0f, a, dimension(transpose_a ? m : k), b, dimension(transpose_b ? k : n), beta, c,
              dimension(n));
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

}  // namespace

ConvBlock::ConvBlock(ImageShape in, size_t outputs, size_t max_batch) : in_(in), outputs_(outputs) {
  gradwire::check(outputs > 0, "convolution: it has 0 output channels, must be at least 1");
  gradwire::check(in.channels > 0 && in.rows >= 2 && in.columns >= 2, "convolution: images are ",
                  in.channels, " x ", in.rows, " x ", in.columns,
                  ", must be at least 1 x 2 x 2: expected fewer convolutions");
  input_.resize(max_batch * in.size());
  columns_.resize(9 * in.channels * pixels());
  z_.resize(outputs * pixels());
  largest_.resize(max_batch * out().size());
  delta_.resize(max_batch * z_.size());
}

size_t ConvBlock::count_bytes(ImageShape in, size_t outputs, size_t max_batch) {
  const size_t pixels = in.rows * in.columns;
  return sizeof(float) * (max_batch * (in.size() + outputs * pixels + outputs * pixels / 4) +
                          9 * in.channels * pixels + outputs * pixels);
}

void ConvBlock::unfold(const float* image) {
  std::fill(columns_.begin(), columns_.end(), 0.0f);
  for_each_run(in_, [&](size_t row, size_t to, size_t from, size_t count) {
    std::copy_n(image + from, count, columns_.data() + row * pixels() + to);
  });
}

void ConvBlock::fold(float* image) const {
  std::fill_n(image, in_.size(), 0.0f);
  for_each_run(in_, [&](size_t row, size_t to, size_t from, size_t count) {
    const float* const column = columns_.data() + row * pixels() + to;
    for (size_t i = 0; i < count; ++i) {
      image[from + i] += column[i];
    }
  });
}

void ConvBlock::forward(std::span<const float> weight, std::span<const float> bias, size_t batch,
                        std::span<float> out) {
  const ImageShape small = this->out();
  for (size_t example = 0; example < batch; ++example) {
    unfold(input_.data() + example * in_.size());
    multiply(false, false, outputs_, pixels(), 9 * in_.channels, weight.data(), columns_.data(),
             0.0f, z_.data());
    for (size_t i = 0; i < small.size(); ++i) {
      const size_t o = i / (small.rows * small.columns);
      const size_t y = i / small.columns % small.rows, x = i % small.columns;
      const size_t corner = (o * in_.rows + 2 * y) * in_.columns + 2 * x;
      size_t best = corner;
      for (const size_t other : {corner + 1, corner + in_.columns, corner + in_.columns + 1}) {
        best = z_[other] > z_[best] ? other : best;
      }
      const float value = z_[best] + bias[o];
      const bool passes = value > 0.0f;
      out[example * small.size() + i] = passes ? value : 0.0f;
      largest_[example * small.size() + i] = passes ? static_cast<uint32_t>(best) : kNone;
    }
  }
}

void ConvBlock::gradients(std::span<const float> delta, size_t batch,
                          std::span<float> weight_gradient, std::span<float> bias_gradient) {
  const size_t small = out().size(), per_output = small / outputs_;
  std::fill(weight_gradient.begin(), weight_gradient.end(), 0.0f);
  std::fill(bias_gradient.begin(), bias_gradient.end(), 0.0f);
  std::fill_n(delta_.begin(), batch * z_.size(), 0.0f);
  for (size_t example = 0; example < batch; ++example) {
    float* const dz = delta_.data() + example * z_.size();
    for (size_t i = 0; i < small; ++i) {
      const uint32_t from = largest_[example * small + i];
      if (from != kNone) {
        dz[from] = delta[example * small + i];
        bias_gradient[i / per_output] += delta[example * small + i];
      }
    }
    unfold(input_.data() + example * in_.size());
    multiply(false, true, outputs_, 9 * in_.channels, pixels(), dz, columns_.data(), 1.0f,
             weight_gradient.data());
  }
}

void ConvBlock::propagate(std::span<const float> weight, size_t batch, std::span<float> in_delta) {
  for (size_t example = 0; example < batch; ++example) {
    multiply(true, false, 9 * in_.channels, pixels(), outputs_, weight.data(),
             delta_.data() + example * z_.size(), 0.0f, columns_.data());
    fold(in_delta.data() + example * in_.size());
  }
}

}  // namespace trainer
