// Each optimizer against its paper's formula in double precision, and against literal numbers.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/optimizers/model.h"
#include "tests/reference/optimizers.h"

namespace gradwire {
namespace {

constexpr int kSteps = 4;
constexpr double kLearningRate = 0.3;

using reference::Vector;

Vector widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// Relative to the vector's largest element: a float's own error, some thirty roundings deep.
void expect_close(const std::vector<float>& actual, const Vector& expected, std::string_view what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0.0;
  for (double x : expected) {
    largest = std::max(largest, std::fabs(x));
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 4e-6 * largest) << what << ", element " << i;
  }
}

/// A parameter's exact history: value and up to two vectors of state.
struct Exact {
  Vector w, a, b;
};
/// One step of the formula for a parameter in `group`.
using Formula = std::function<void(Exact&, const Vector& g, int t, const ParamGroup& group)>;

/// The state is named as the formula's a and b are; an empty name: there is none.
void expect_formula(const OptimizerSpec& spec, const Formula& formula, std::string_view a,
                    std::string_view b = "") {
  SCOPED_TRACE(to_string(spec));
  Model model;
  const std::vector<ParamGroup> groups = model_groups();
  const auto optimizer = make_optimizer(spec, model.parameters(groups.size()), groups);
  std::vector<Exact> exact;
  for (const std::vector<float>& value : model.values) {
    exact.push_back({widened(value), Vector(value.size()), Vector(value.size())});
  }
  for (int t = 1; t <= kSteps; ++t) {
    SCOPED_TRACE("step " + std::to_string(t));
    model.fill_gradients(static_cast<unsigned>(t));
    step(*optimizer, kLearningRate, 2);
    const State state = read_state(*optimizer);
    for (size_t i = 0; i < exact.size(); ++i) {
      const std::string name = "layer" + std::to_string(i);
      EXPECT_EQ(state.scalars.at(name + "/step"), static_cast<uint64_t>(t));
      formula(exact[i], widened(model.gradients[i]), t, groups[i % groups.size()]);
      expect_close(model.values[i], exact[i].w, name + " value");
      if (!a.empty()) {
        expect_close(state.tensors.at(name + "/" + std::string(a)), exact[i].a, name + " a");
      }
      if (!b.empty()) {
        expect_close(state.tensors.at(name + "/" + std::string(b)), exact[i].b, name + " b");
      }
    }
  }
}

TEST(OptimizerFormula, SgdFollowsHeavyBallAndNesterov) {
  for (const char* text : {"sgd:weight_decay=0.1", "sgd:weight_decay=0.1,nesterov=1",
                           "sgd:momentum=0.5", "sgd:momentum=0,weight_decay=0.1"}) {
    const OptimizerSpec spec = parse_optimizer(text);
    const auto formula = [&](Exact& x, const Vector& g, int, const ParamGroup& group) {
      reference::sgd(x.w, x.a, g,
                     {.learning_rate = kLearningRate * group.learning_rate_scale,
                      .momentum = spec.momentum,
                      .weight_decay = group.weight_decay.value_or(spec.weight_decay.value()),
                      .nesterov = spec.nesterov.value()});
    };
    expect_formula(spec, formula, spec.momentum == 0.0 ? "" : "momentum");
  }
}

TEST(OptimizerFormula, LarsFollowsThePaper) {
  for (const char* text : {"lars:trust_coefficient=0.4,weight_decay=0.1",
                           "lars:trust_coefficient=0.4,epsilon=0.5,momentum=0.5", "lars"}) {
    const OptimizerSpec spec = parse_optimizer(text);
    const auto formula = [&](Exact& x, const Vector& g, int, const ParamGroup& group) {
      reference::lars(x.w, x.a, g,
                      {.learning_rate = kLearningRate * group.learning_rate_scale,
                       .momentum = spec.momentum,
                       .weight_decay = group.weight_decay.value_or(spec.weight_decay.value()),
                       .trust_coefficient = spec.trust_coefficient.value(),
                       .epsilon = spec.epsilon.value(),
                       .adapt = group.adapt});
    };
    expect_formula(spec, formula, "momentum");
  }
}

TEST(OptimizerFormula, LambFollowsThePaper) {
  for (const char* text : {"lamb:weight_decay=0.1", "lamb:beta1=0.5,beta2=0.75,epsilon=0.01",
                           "lamb:beta1=0,beta2=0,weight_decay=0.01"}) {
    const OptimizerSpec spec = parse_optimizer(text);
    const auto formula = [&](Exact& x, const Vector& g, int t, const ParamGroup& group) {
      reference::lamb(x.w, x.a, x.b, g, t,
                      {.learning_rate = kLearningRate * group.learning_rate_scale,
                       .beta1 = spec.beta1,
                       .beta2 = spec.beta2,
                       .epsilon = spec.epsilon.value(),
                       .weight_decay = group.weight_decay.value_or(spec.weight_decay.value()),
                       .adapt = group.adapt});
    };
    expect_formula(spec, formula, "exp_avg", "exp_avg_sq");
  }
}

/// Values after `gradients.size()` steps from `value`.
std::vector<float> run(const char* spec, std::vector<float> value, double learning_rate,
                       const std::vector<std::vector<float>>& gradients) {
  std::vector<float> gradient(value.size());
  const auto optimizer =
      make_optimizer(parse_optimizer(spec), {{.name = "w",
                                              .value = view_of(std::span(value)),
                                              .gradient = view_of(std::span(gradient))}});
  for (const std::vector<float>& g : gradients) {
    std::copy(g.begin(), g.end(), gradient.begin());
    step(*optimizer, learning_rate);
  }
  return value;
}

// By hand, lr 0.1, mu 0.5, wd 0.5, w 2, g 1 and 3: d 2, v 2, w 1.8; d 3.9, v 4.9, w 1.31.
// Nesterov: d 2, v 2, w 2 - 0.1 (2 + 1) = 1.7; d 3.85, v 4.85, w 1.7 - 0.1 (3.85 + 2.425) = 1.0725.
TEST(OptimizerGolden, SgdByHand) {
  EXPECT_NEAR(run("sgd:momentum=0.5,weight_decay=0.5", {2}, 0.1, {{1}, {3}})[0], 1.31, 2e-7);
  EXPECT_NEAR(run("sgd:momentum=0.5,weight_decay=0.5,nesterov=1", {2}, 0.1, {{1}, {3}})[0], 1.0725,
              2e-7);
  EXPECT_NEAR(run("sgd:momentum=0", {2}, 0.1, {{1}, {3}})[0], 1.6, 2e-7);
}

// Group 0 has the spec's momentum of 0.5, group 1 none: w 2, g 1 and 3, lr 0.1.
TEST(OptimizerGolden, GroupsHaveMomentumOfTheirOwn) {
  for (const char* text : {"sgd:momentum=0.5", "sgd:momentum=0"}) {
    std::vector<float> values{2, 2}, gradients{1, 1};
    const auto part = [](std::vector<float>& x, size_t i) {
      return view_of(std::span(x).subspan(i, 1));
    };
    const auto optimizer = make_optimizer(parse_optimizer(text),
                                          {{"a", part(values, 0), part(gradients, 0), 0},
                                           {"b", part(values, 1), part(gradients, 1), 1}},
                                          {{.momentum = 0.5}, {.momentum = 0.0}});
    step(*optimizer, 0.1);
    gradients = {3, 3};
    step(*optimizer, 0.1);
    EXPECT_NEAR(values[0], 2 - 0.1 - 0.35, 2e-7) << text;
    EXPECT_NEAR(values[1], 2 - 0.1 - 0.3, 2e-7) << text;
  }
}

// By hand: ||w|| = 5, ||g|| = 1, local = 0.3 * 5 / (1 + 0.1 * 5) = 1, v = 0.5 (g + 0.1 w).
TEST(OptimizerGolden, LarsByHand) {
  const std::vector<float> w =
      run("lars:trust_coefficient=0.3,weight_decay=0.1,epsilon=1e-30", {3, 4}, 0.5, {{0.6f, 0.8f}});
  EXPECT_NEAR(w[0], 3 - 0.5 * (0.6 + 0.3), 5e-7);
  EXPECT_NEAR(w[1], 4 - 0.5 * (0.8 + 0.4), 5e-7);
}

// By hand: at the first step m^ = g and v^ = g^2, so r is the sign of g and ||r|| = 2; ||w|| = 6.
TEST(OptimizerGolden, LambsFirstStepByHand) {
  const std::vector<float> w =
      run("lamb:epsilon=1e-30", {3, 3, -3, 3}, 0.1, {{1e-3f, -5, 100, 2e-6f}});
  EXPECT_NEAR(w[0], 2.7, 1e-6);
  EXPECT_NEAR(w[1], 3.3, 1e-6);
  EXPECT_NEAR(w[2], -3.3, 1e-6);
  EXPECT_NEAR(w[3], 2.7, 1e-6);
}

// The next two were computed with Python's decimal module at 40 digits from the formulas on top of
// lars.cc and lamb.cc, over two steps from w = (1, 2, -2).
const std::vector<float> kGoldenValue{1, 2, -2};
const std::vector<std::vector<float>> kGoldenGradients{{0.5f, -1.0f, 0.25f},
                                                       {-0.125f, 0.75f, 1.5f}};

TEST(OptimizerGolden, LarsOverTwoSteps) {
  const char* spec = "lars:trust_coefficient=0.125,weight_decay=0.0625";
  expect_close(run(spec, kGoldenValue, 2.0, {kGoldenGradients[0]}),
               {0.683549033, 2.492257059, -2.070322437}, "step 1");
  expect_close(run(spec, kGoldenValue, 2.0, kGoldenGradients),
               {0.434806954, 2.538277253, -2.734369758}, "step 2");
}

TEST(OptimizerGolden, LambOverTwoSteps) {
  const char* spec = "lamb:weight_decay=0.01";
  expect_close(run(spec, kGoldenValue, 0.1, {kGoldenGradients[0]}),
               {0.823313787, 2.171438272, -2.171437747}, "step 1");
  expect_close(run(spec, kGoldenValue, 0.1, kGoldenGradients),
               {0.664027473, 2.193982611, -2.445665644}, "step 2");
}

// A norm of 0 leaves the ratio at 1: layers that start at zero move, and decay alone still acts.
TEST(OptimizerFormula, RatioIsOneWhereANormIsZero) {
  EXPECT_NEAR(run("lars", {0, 0}, 0.5, {{1, -2}})[1], 1.0, 1e-7);
  EXPECT_NEAR(run("lars:weight_decay=0.5", {2, 4}, 0.5, {{0, 0}})[1], 3.0, 1e-6);
  EXPECT_NEAR(run("lamb", {0, 0}, 0.5, {{1, -2}})[1], 0.5, 1e-6);
  for (double learning_rate : {0.0, 0.5}) {
    EXPECT_EQ(run("lamb", {2, 4}, learning_rate, {{0, 0}}), (std::vector<float>{2, 4}));
  }
}

// Squares of these leave float's range on either side; the norms must not.
TEST(OptimizerFormula, NormsSurviveExtremeGradients) {
  for (float size : {1e-25f, 1e-20f, 1e20f, 1e30f}) {
    SCOPED_TRACE(size);
    std::vector<float> gradient(5000);
    std::vector<float> value(5000, 1.0f);
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = size * (i % 3 == 0 ? 1.0f : -0.5f);
    }
    Vector w = widened(value), v(value.size());
    reference::lars(w, v, widened(gradient), {1.0, 0.9, 0.0, 0.5, 1e-30, true});
    expect_close(run("lars:trust_coefficient=0.5,epsilon=1e-30", value, 1.0, {gradient}), w,
                 "lars value");
  }
  for (float size : {1e-12f, 1e15f, 1e20f}) {  // v = g^2 / 1000 itself must be a float
    SCOPED_TRACE(size);
    std::vector<float> gradient(5000);
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = size * (i % 3 == 0 ? 1.0f : -0.5f);
    }
    const std::vector<float> value(5000, 1.0f);
    Vector w = widened(value), m(value.size()), v(value.size());
    reference::lamb(w, m, v, widened(gradient), 1, {0.1, 0.9, 0.999, 1e-30, 0.01, true});
    expect_close(run("lamb:epsilon=1e-30,weight_decay=0.01", value, 0.1, {gradient}), w,
                 "lamb value");
  }
}

TEST(OptimizerFormula, TheLargestGradientsLeaveFiniteState) {
  for (const OptimizerRow& row : optimizer_registry()) {
    SCOPED_TRACE(std::string(row.name));
    Model model({2000});
    const auto optimizer = make_optimizer({.name = std::string(row.name)}, model.parameters());
    model.gradients[0].assign(2000, 3e38f);
    step(*optimizer, 1e-3);
    model.fill_gradients(1);
    step(*optimizer, 1e-3);
    for (const auto& [name, tensor] : read_state(*optimizer).tensors) {
      for (float x : tensor) {
        ASSERT_TRUE(std::isfinite(x)) << name;
      }
    }
    for (float x : model.values[0]) {
      ASSERT_TRUE(std::isfinite(x));
    }
  }
}

}  // namespace
}  // namespace gradwire
