#pragma once
// State of 8 bits in tests: what its codes are by a table that is searched, with the draws that
// they were rounded by.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gradwire/kernels/core/philox.h"
#include "tests/optimizers/model.h"
#include "tests/reference/optimizers.h"
#include "tests/reference/state_codes.h"

namespace gradwire {

/// Of the element in a step, from 0 on, of the parameter whose name has this FNV-1a hash.
inline uint16_t draw_of(uint64_t hash, uint32_t step, uint64_t element) {
  const PhiloxCounter words = philox({{static_cast<uint32_t>(element / 8), step, 0, 0}}, hash);
  const uint32_t word = words.word[element % 8 / 2];
  return static_cast<uint16_t>(element % 2 == 0 ? word & 0xFFFFu : word >> 16);
}

/// What codes and scales of a state are.
inline ::reference::Vector decoded(const State& state, const std::string& name, bool has_sign) {
  const std::vector<double> values = reference::code_values(has_sign);
  const std::vector<float>& scales = state.tensors.at(name + ".scale");
  ::reference::Vector out;
  for (const std::byte code : state.bytes.at(name)) {
    const int bits = std::to_integer<int>(code);
    const double magnitude = values[has_sign ? bits & 127 : bits];
    const double x = magnitude * double{scales[out.size() / 256]};
    out.push_back(has_sign && bits > 127 ? -x : x);
  }
  return out;
}

/// Of "layer0".
inline constexpr uint64_t kHashOfLayer0 = 0x4555244A74709152u;

/// Elements of which a code had to be compared with more care than a double has.
struct Compared {
  size_t all = 0, uncertain = 0;
};

/// Expects the codes of `exact`, drawn in the step of this number, from 0 on.
inline void expect_codes(const State& state, const std::string& name, bool has_sign,
                         const ::reference::Vector& exact, uint64_t hash, uint32_t t,
                         Compared& compared) {
  const std::vector<double> values = reference::code_values(has_sign);
  const std::vector<std::byte>& codes = state.bytes.at(name);
  const std::vector<float>& scales = state.tensors.at(name + ".scale");
  ASSERT_EQ(codes.size(), exact.size());
  ASSERT_EQ(scales.size(), (exact.size() + 255) / 256);
  for (size_t begin = 0; begin < exact.size(); begin += 256) {
    const size_t end = std::min(begin + 256, exact.size());
    double largest = 0.0;
    for (size_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::fabs(exact[i]));
    }
    const double scale = scales[begin / 256];
    if (scale != reference::code_scale(largest)) {  // at an edge it may be of a neighbour
      ASSERT_TRUE(scale == reference::code_scale(largest * (1.0 + 1e-5)) ||
                  scale == reference::code_scale(largest * (1.0 - 1e-5)))
          << name << ", block " << begin / 256 << ", scale " << scale << ", largest " << largest;
    }
    for (size_t i = begin; i < end; ++i) {
      ++compared.all;
      const double y = scale == 0.0 ? 0.0 : std::fabs(exact[i]) / scale;
      const double draw = (draw_of(hash, t, i) + 0.5) / 65536.0;
      const reference::Code expected = reference::code_of(values, has_sign, y, draw);
      const int bits = std::to_integer<int>(codes[i]);
      if (!expected.certain) {
        ++compared.uncertain;
        ASSERT_LE(std::abs((has_sign ? bits & 127 : bits) - expected.code), 1) << i;
        continue;
      }
      const int sign = has_sign && expected.code != 0 && exact[i] < 0.0 ? 128 : 0;
      ASSERT_EQ(bits, expected.code + sign) << name << ", element " << i << " is " << exact[i];
    }
  }
}

/// A parameter whose elements' gradients are of different sizes, the logarithms of which have this
/// standard deviation, and 0 for some elements and steps.
struct Wide {
  explicit Wide(size_t numel, double spread) : model({numel}) {
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < numel; ++i) {
      sizes.push_back(static_cast<float>(i % 17 == 0 ? 0.0 : std::exp(spread * normal(random))));
    }
  }
  void fill() {
    std::normal_distribution<float> normal(0.25f, 1.0f);
    for (size_t i = 0; i < sizes.size(); ++i) {
      model.gradients[0][i] = random() % 5 == 0 ? 0.0f : sizes[i] * normal(random);
    }
  }
  Model model;
  std::vector<float> sizes;
  std::mt19937 random{7};
};

}  // namespace gradwire
