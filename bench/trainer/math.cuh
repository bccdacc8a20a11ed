#pragma once
// The kernels of a network. Products are one kernel, of matrices that may be formed as they are
// read: a convolution's image is never unfolded in memory. Every sum is in an order that neither
// the number of blocks nor their timing changes.

#include <cmath>

#include "bench/trainer/math.h"
#include "gradwire/kernels/ops/block.cuh"

namespace trainer::cuda {

using gradwire::cuda::kWarp;

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kTile = 32;   // rows and columns of a product that a block computes
inline constexpr unsigned kDepth = 16;  // terms of its sums that are in shared memory at a time
inline constexpr unsigned kPlaces = 9;  // of a convolution

/// Of the product of one example; there may be one for each example of a batch.
struct ProductSize {
  uint32_t m, n, k;
};

/// Element (row, column) at row * stride + column, example by example.
struct Matrix {
  static constexpr bool kAlongColumns = true;  // neighbours in memory
  const float* x;
  uint32_t stride;
  size_t example = 0;
  __device__ __forceinline__ float operator()(uint32_t e, uint32_t row, uint32_t column) const {
    return x[e * example + size_t{row} * stride + column];
  }
};

struct Transposed {
  static constexpr bool kAlongColumns = false;
  const float* x;
  uint32_t stride;
  size_t example = 0;
  __device__ __forceinline__ float operator()(uint32_t e, uint32_t row, uint32_t column) const {
    return x[e * example + size_t{column} * stride + row];
  }
};

struct Planes {
  uint32_t channels, rows, columns;
};

/// What place `row` mod 9 of the 3x3 around pixel `column` sees of channel `row` / 9: 0 outside.
struct Unfolded {
  static constexpr bool kAlongColumns = true;
  const float* images;
  Planes of;
  __device__ __forceinline__ float operator()(uint32_t e, uint32_t row, uint32_t column) const {
    const uint32_t place = row % kPlaces;
    // One row and column further than in the image, so that nothing is below 0.
    const uint32_t y = column / of.columns + place / 3, x = column % of.columns + place % 3;
    if (y == 0 || y > of.rows || x == 0 || x > of.columns) {
      return 0.0f;
    }
    const size_t plane = size_t{e} * of.channels + row / kPlaces;
    return images[(plane * of.rows + y - 1) * of.columns + x - 1];
  }
};

struct UnfoldedTransposed {
  static constexpr bool kAlongColumns = false;
  Unfolded columns;
  __device__ __forceinline__ float operator()(uint32_t e, uint32_t row, uint32_t column) const {
    return columns(e, column, row);
  }
};

/// A convolution's weights for the way back: row: input channel; column: output and place, the
/// places in the reverse order.
struct Mirrored {
  static constexpr bool kAlongColumns = true;
  const float* weight;
  uint32_t inputs;
  __device__ __forceinline__ float operator()(uint32_t, uint32_t row, uint32_t column) const {
    const size_t output = column / kPlaces;
    return weight[(output * inputs + row) * kPlaces + (kPlaces - 1 - column % kPlaces)];
  }
};

struct Store {
  float* out;
  uint32_t stride;
  size_t example = 0;
  __device__ __forceinline__ void operator()(uint32_t e, uint32_t row, uint32_t column,
                                             float sum) const {
    out[e * example + size_t{row} * stride + column] = sum;
  }
};

struct StoreActivation {
  float* out;
  const float* bias;
  uint32_t stride;
  Activation activation;
  __device__ __forceinline__ void operator()(uint32_t, uint32_t row, uint32_t column,
                                             float sum) const {
    const float z = sum + bias[column];
    out[size_t{row} * stride + column] = activation == Activation::kNone || z > 0.0f ? z : 0.0f;
  }
};

/// Where x, which is behind a ReLU, is positive.
struct StorePassed {
  float* out;
  const float* x;
  uint32_t stride;
  __device__ __forceinline__ void operator()(uint32_t, uint32_t row, uint32_t column,
                                             float sum) const {
    const size_t i = size_t{row} * stride + column;
    out[i] = x[i] > 0.0f ? sum : 0.0f;
  }
};

/// Neighbouring threads take neighbours in memory: along the sum, or across it.
template <bool kAlongDepth, class At>
__device__ __forceinline__ void load_tile(float (&tile)[kDepth][kTile + 1], const At& at) {
#pragma unroll
  for (unsigned i = 0; i < kDepth * kTile / kThreads; ++i) {
    const unsigned j = threadIdx.x + i * kThreads;
    const unsigned depth = kAlongDepth ? j % kDepth : j / kTile;
    const unsigned line = kAlongDepth ? j / kDepth : j % kTile;
    tile[depth][line] = at(depth, line);
  }
}

/// out(e, row, column) = sum over i of a(e, row, i) b(e, i, column), i rising. A block computes a
/// tile of one example, a thread four elements.
template <class A, class B, class Out>
__global__ void __launch_bounds__(kThreads) product_kernel(ProductSize size, A a, B b, Out out) {
  GRADWIRE_SHARED(tile_a, float[kDepth][kTile + 1]);
  GRADWIRE_SHARED(tile_b, float[kDepth][kTile + 1]);
  const uint32_t across = (size.n + kTile - 1) / kTile, down = (size.m + kTile - 1) / kTile;
  const uint32_t first_column = blockIdx.x % across * kTile;
  const uint32_t first_row = blockIdx.x / across % down * kTile;
  const uint32_t e = blockIdx.x / across / down;
  const unsigned row = threadIdx.x / (kTile / 2), column = threadIdx.x % (kTile / 2);
  float sum[2][2] = {};
  for (uint32_t begin = 0; begin < size.k; begin += kDepth) {
    load_tile<A::kAlongColumns>(tile_a, [&](uint32_t depth, uint32_t line) {
      const uint32_t r = first_row + line, i = begin + depth;
      return r < size.m && i < size.k ? a(e, r, i) : 0.0f;
    });
    load_tile<!B::kAlongColumns>(tile_b, [&](uint32_t depth, uint32_t line) {
      const uint32_t c = first_column + line, i = begin + depth;
      return c < size.n && i < size.k ? b(e, i, c) : 0.0f;
    });
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < kDepth; ++i) {
      const float x[2] = {tile_a[i][row], tile_a[i][row + kTile / 2]};
      const float y[2] = {tile_b[i][column], tile_b[i][column + kTile / 2]};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum[j / 2][j % 2] += x[j / 2] * y[j % 2];
      }
    }
    __syncthreads();  // the next terms take their place
  }
#pragma unroll
  for (unsigned j = 0; j < 4; ++j) {
    const uint32_t r = first_row + row + j / 2 * (kTile / 2);
    const uint32_t c = first_column + column + j % 2 * (kTile / 2);
    if (r < size.m && c < size.n) {
      out(e, r, c, sum[j / 2][j % 2]);
    }
  }
}

/// out[c] = sum of column c of x [rows, columns], from the first row on.
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const float* x, size_t rows, size_t columns, float* out) {
  const size_t c = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= columns) {
    return;
  }
  float sum = 0.0f;
  for (size_t r = 0; r < rows; ++r) {
    sum += x[r * columns + c];
  }
  out[c] = sum;
}

/// The sum of all threads' values.
__device__ __forceinline__ double block_sum(double value) {
  GRADWIRE_SHARED(of_warp, double[kThreads / kWarp]);
  const double sum = gradwire::cuda::warp_sum(value);
  if (gradwire::cuda::lane_index() == 0) {
    of_warp[gradwire::cuda::warp_index()] = sum;
  }
  __syncthreads();
  double all = of_warp[0];
#pragma unroll
  for (unsigned w = 1; w < kThreads / kWarp; ++w) {
    all += of_warp[w];
  }
  __syncthreads();  // it may be called again at once
  return all;
}

/// out[channel] = sum over examples and pixels of x [examples, channels, pixels]. One block each.
__global__ void __launch_bounds__(kThreads)
    channel_sums_kernel(const float* x, size_t examples, size_t pixels, float* out) {
  double sum = 0;
  for (size_t i = threadIdx.x; i < examples * pixels; i += kThreads) {
    sum += x[(i / pixels * gridDim.x + blockIdx.x) * pixels + i % pixels];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    out[blockIdx.x] = static_cast<float>(sum);
  }
}

/// out = maximum of ReLU(z + bias) over 2x2 pixels, and which of them it was.
__global__ void __launch_bounds__(kThreads)
    pool_kernel(const float* z, const float* bias, Planes of, size_t planes, float* out,
                uint32_t* largest) {
  const uint32_t rows = of.rows / 2, columns = of.columns / 2;
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= planes * rows * columns) {
    return;
  }
  const size_t plane = i / (size_t{rows} * columns);
  const uint32_t output = static_cast<uint32_t>(plane % of.channels);
  const uint32_t y = static_cast<uint32_t>(i / columns % rows);
  const uint32_t x = static_cast<uint32_t>(i % columns);
  const float* const of_example = z + plane / of.channels * of.channels * of.rows * of.columns;
  const uint32_t corner = (output * of.rows + 2 * y) * of.columns + 2 * x;
  uint32_t best = corner;
#pragma unroll
  for (uint32_t other = 1; other < 4; ++other) {
    const uint32_t at = corner + other / 2 * of.columns + other % 2;
    best = of_example[at] > of_example[best] ? at : best;
  }
  const float value = of_example[best] + bias[output];
  out[i] = value > 0.0f ? value : 0.0f;
  largest[i] = value > 0.0f ? best : ConvBatch::kNone;
}

/// dz = delta where pool_kernel took it from, else 0.
__global__ void __launch_bounds__(kThreads)
    unpool_kernel(const float* delta, const uint32_t* largest, Planes of, size_t planes,
                  float* dz) {
  const size_t pixels = size_t{of.rows} * of.columns;
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= planes * pixels) {
    return;
  }
  const size_t plane = i / pixels;
  const uint32_t rows = of.rows / 2, columns = of.columns / 2;
  const uint32_t y = static_cast<uint32_t>(i % pixels / of.columns) / 2;
  const uint32_t x = static_cast<uint32_t>(i % of.columns) / 2;
  float value = 0.0f;
  if (y < rows && x < columns) {  // an odd last row or column is left out
    const size_t from = (plane * rows + y) * columns + x;
    value = largest[from] == i % (of.channels * pixels) ? delta[from] : 0.0f;
  }
  dz[i] = value;
}

/// Images in the memory of the GPU, as LabelledImages has them, and each channel's 256 inputs.
struct StoredImages {
  const uint8_t* pixels;
  const uint8_t* labels;
  const float* standardised;
  size_t features, plane;
};

__global__ void __launch_bounds__(kThreads)
    take_examples_kernel(StoredImages from, const uint32_t* indices, size_t count, float* inputs,
                         uint8_t* labels) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count * from.features) {
    return;
  }
  const size_t feature = i % from.features, image = indices[i / from.features];
  const uint8_t pixel = from.pixels[image * from.features + feature];
  inputs[i] = from.standardised[feature / from.plane * 256 + pixel];
  if (feature == 0) {
    labels[i / from.features] = from.labels[image];
  }
}

/// One block, a thread for a row: probabilities, mean loss, and how many rows are right.
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(const float* logits, const uint8_t* labels, size_t batch, size_t classes,
                         float* probabilities, BatchResult* result) {
  double loss = 0, correct = 0;
  for (size_t row = threadIdx.x; row < batch; row += kThreads) {
    const float* const z = logits + row * classes;
    float* const p = probabilities + row * classes;
    size_t largest = 0;
    for (size_t c = 1; c < classes; ++c) {
      largest = z[largest] < z[c] ? c : largest;
    }
    double sum = 0;
    for (size_t c = 0; c < classes; ++c) {
      p[c] = expf(z[c] - z[largest]);
      sum += p[c];
    }
    for (size_t c = 0; c < classes; ++c) {
      p[c] = static_cast<float>(p[c] / sum);
    }
    loss += log(sum) + z[largest] - z[labels[row]];
    correct += largest == labels[row] ? 1 : 0;
  }
  loss = block_sum(loss);
  correct = block_sum(correct);
  if (threadIdx.x == 0) {
    *result = {loss / static_cast<double>(batch), static_cast<uint64_t>(correct)};
  }
}

__global__ void __launch_bounds__(kThreads)
    cross_entropy_gradient_kernel(const float* probabilities, const uint8_t* labels, size_t batch,
                                  size_t classes, float* delta) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= batch * classes) {
    return;
  }
  const float target = i % classes == labels[i / classes] ? 1.0f : 0.0f;
  delta[i] = (probabilities[i] - target) * (1.0f / static_cast<float>(batch));
}

}  // namespace trainer::cuda
