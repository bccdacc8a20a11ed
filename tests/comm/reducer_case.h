#pragma once
// A small model and its gradients, for the reducer tests.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gradwire/comm/reducer.h"
#include "tests/support/ranks.h"

namespace gradwire::test {

/// Weights, biases and a scalar: 18 956 elements, several buckets of 16 KiB.
inline std::vector<ParamInfo> model() {
  return {{"embed.weight", {50, 40}},  {"one.weight", {64, 33}},  {"one.bias", {33}},
          {"temperature", {}},         {"two.weight", {33, 200}}, {"two.bias", {200}},
          {"three.weight", {200, 40}}, {"three.bias", {10}}};
}

inline Plan plan_of(const std::string& spec, size_t bucket_bytes = 16384,
                    const std::string& exchange = "auto",
                    const std::vector<SpecRule>& rules = {}) {
  PlanOptions options;
  options.spec = parse_spec(spec);
  options.bucket_bytes = bucket_bytes;
  options.exchange = exchange;
  options.rules = rules;
  options.seed = 3;
  return make_plan(model(), options);
}

using Values = std::vector<std::vector<float>>;  ///< of each parameter

/// The gradient of one rank in one step: the same whenever it is asked for.
inline Values gradients(int rank, int step) {
  std::mt19937 generator(static_cast<unsigned>(7919 * rank + step + 1));
  std::normal_distribution<float> normal;
  Values values;
  for (const ParamInfo& parameter : model()) {
    auto& of_parameter = values.emplace_back(parameter.numel());
    std::generate(of_parameter.begin(), of_parameter.end(), [&] { return normal(generator); });
  }
  return values;
}

inline std::vector<ParamId> forward_order() {
  std::vector<ParamId> order(model().size());
  std::iota(order.begin(), order.end(), ParamId{0});
  return order;
}

/// Last parameter first, as backward has it.
inline std::vector<ParamId> backward_order() {
  auto order = forward_order();
  std::reverse(order.begin(), order.end());
  return order;
}

inline std::vector<ParamId> random_order(unsigned seed) {
  auto order = forward_order();
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

inline void write_gradient(Reducer& reducer, ParamId p, const Values& values) {
  const auto place = reducer.gradient(p).as<float>();
  std::copy(values[p].begin(), values[p].end(), place.begin());
}

inline void hand_over(Reducer& reducer, const Values& values,
                      const std::vector<ParamId>& order = backward_order()) {
  for (const ParamId p : order) {
    write_gradient(reducer, p, values);
    reducer.grad_ready(p);
  }
}

inline Values means(Reducer& reducer) {
  Values values;
  for (const ParamId p : forward_order()) {
    const auto mean = reducer.gradient(p).as<float>();
    values.emplace_back(mean.begin(), mean.end());
  }
  return values;
}

inline Values residuals(const Reducer& reducer) {
  Values values;
  for (const ParamId p : forward_order()) {
    const ConstResidual residual = reducer.residual(p);
    values.emplace_back(residual.begin(), residual.end());
  }
  return values;
}

inline bool same_bits(const Values& a, const Values& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
  });
}

/// Each element x as change(x).
template <class Change>
Values changed(Values values, const Change& change) {
  for (auto& of_parameter : values) {
    std::ranges::transform(of_parameter, of_parameter.begin(), change);
  }
  return values;
}

/// What a rank has after some steps.
struct Outcome {
  Values means, residuals;
  bool operator==(const Outcome& other) const {
    return same_bits(means, other.means) && same_bits(residuals, other.residuals);
  }
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The message `action` fails with; "" when it does not fail with an E.
template <class E, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace gradwire::test
