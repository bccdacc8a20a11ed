#pragma once
// Gradients for tests: seeded, and of the shapes that break compressors.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gradwire/kernels/core/tensor.h"

namespace gradwire::testing {

/// Owns the elements of a tensor of any dtype.
struct OwnedTensor {
  std::vector<std::byte> bytes;
  DType dtype = DType::kFloat32;

  size_t numel() const { return bytes.size() / size_of(dtype); }
  TensorView view() { return {bytes.data(), numel(), dtype, {}}; }
  /// Element by element through kernels/core/dtype.h.
  std::vector<float> floats() const {
    std::vector<float> out(numel());
    dispatch(dtype, [&]<class T>() {
      for (size_t i = 0; i < out.size(); ++i) {
        T element;
        std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
        out[i] = to_float(element);
      }
    });
    return out;
  }
};

inline OwnedTensor zeros(size_t numel, DType dtype) {
  return {std::vector<std::byte>(numel * size_of(dtype)), dtype};
}

inline OwnedTensor tensor_of(const std::vector<float>& values, DType dtype) {
  OwnedTensor tensor = zeros(values.size(), dtype);
  dispatch(dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) {
      const T element = from_float<T>(values[i]);
      std::memcpy(tensor.bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return tensor;
}

inline std::vector<float> normal(size_t numel, uint64_t seed, float deviation = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> distribution(0.0f, deviation);
  std::vector<float> values(numel);
  std::ranges::generate(values, [&] { return distribution(random); });
  return values;
}

/// Student's t with two degrees of freedom: a few elements dwarf the rest, as in real gradients.
inline std::vector<float> heavy_tailed(size_t numel, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::student_t_distribution<float> distribution(2.0f);
  std::vector<float> values(numel);
  std::ranges::generate(values, [&] { return distribution(random); });
  return values;
}

/// Layers of very different magnitude one after another, with runs of zeros.
inline std::vector<float> layered(size_t numel, uint64_t seed) {
  std::vector<float> values = normal(numel, seed);
  for (size_t i = 0; i < numel; ++i) {
    const int layer = static_cast<int>(i / 700 % 5);
    values[i] *= layer == 4 ? 0.0f : std::pow(10.0f, static_cast<float>(-3 * layer));
  }
  return values;
}

}  // namespace gradwire::testing
