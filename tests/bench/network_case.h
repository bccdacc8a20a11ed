#pragma once
// A network in double precision, to compare the trainer's with, and shapes of some.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bench/trainer/network.h"

namespace network_case {

using Planes = std::vector<std::vector<std::vector<double>>>;  // channel, row, column

// One multiplication after another, images of one channel.
struct Reference {
  trainer::NetworkShape shape;
  std::vector<std::vector<double>> parameters;  // weight, bias, weight, bias, …

  Planes convolve(const Planes& in, size_t layer) const {
    const auto &weight = parameters[2 * layer], &bias = parameters[2 * layer + 1];
    const long rows = static_cast<long>(in[0].size()), columns = static_cast<long>(in[0][0].size());
    const auto z = [&](size_t o, long y, long x) {
      double sum = bias[o];
      for (size_t c = 0; c < in.size(); ++c) {
        for (long dy = -1; dy <= 1; ++dy) {
          for (long dx = -1; dx <= 1; ++dx) {
            if (y + dy >= 0 && y + dy < rows && x + dx >= 0 && x + dx < columns) {
              sum += weight[(o * in.size() + c) * 9 + static_cast<size_t>((dy + 1) * 3 + dx + 1)] *
                     in[c][static_cast<size_t>(y + dy)][static_cast<size_t>(x + dx)];
            }
          }
        }
      }
      return std::max(sum, 0.0);
    };
    Planes out(bias.size());
    for (size_t o = 0; o < out.size(); ++o) {
      for (long y = 0; y + 1 < rows; y += 2) {
        out[o].emplace_back();
        for (long x = 0; x + 1 < columns; x += 2) {
          out[o].back().push_back(
              std::max({z(o, y, x), z(o, y, x + 1), z(o, y + 1, x), z(o, y + 1, x + 1)}));
        }
      }
    }
    return out;
  }

  std::vector<double> features(const float* pixels) const {
    Planes planes(1);
    for (size_t y = 0; y < shape.image.rows; ++y) {
      planes[0].emplace_back(pixels + y * shape.image.columns,
                             pixels + (y + 1) * shape.image.columns);
    }
    for (size_t k = 0; k < shape.convolutions.size(); ++k) {
      planes = convolve(planes, k);
    }
    std::vector<double> all;
    for (const auto& plane : planes) {
      for (const auto& row : plane) {
        all.insert(all.end(), row.begin(), row.end());
      }
    }
    return all;
  }

  double loss(const std::vector<float>& inputs, const std::vector<uint8_t>& labels) const {
    double total = 0;
    for (size_t example = 0; example < labels.size(); ++example) {
      std::vector<double> x = features(inputs.data() + example * shape.image.size());
      for (size_t p = 2 * shape.convolutions.size(); p < parameters.size(); p += 2) {
        std::vector<double> z(parameters[p + 1].size());
        for (size_t o = 0; o < z.size(); ++o) {
          z[o] = parameters[p + 1][o];
          for (size_t i = 0; i < x.size(); ++i) {
            z[o] += parameters[p][o * x.size() + i] * x[i];
          }
          if (p + 2 < parameters.size() && z[o] < 0) {
            z[o] = 0;
          }
        }
        x = z;
      }
      double sum = 0;
      for (const double z : x) {
        sum += std::exp(z);
      }
      total += std::log(sum) - x[labels[example]];
    }
    return total / static_cast<double>(labels.size());
  }
};

inline trainer::NetworkShape perceptron(std::vector<size_t> widths) {
  const size_t inputs = widths.front(), classes = widths.back();
  return {{1, 1, inputs}, {}, {widths.begin() + 1, widths.end() - 1}, classes};
}

// Odd rows and columns, so that some are left out.
inline const std::vector<trainer::NetworkShape> kShapes = {
    perceptron({5, 7, 6, 3}), {{1, 7, 9}, {3}, {}, 3}, {{1, 9, 8}, {3, 4}, {5}, 3}};

}  // namespace network_case
