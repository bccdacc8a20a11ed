// Every row and preset against its source's algorithm in double precision, over many random steps
// at a rate that changes, on tensors of 0 to 5001 elements, and one of 10^6.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/optimizers/model.h"
#include "tests/reference/optimizer_presets.h"

namespace gradwire {
namespace {

using reference::Gradients;
using reference::Layers;
using reference::Vector;

constexpr int kSteps = 200;
constexpr double kDecay = 0.05;

struct Preset {
  std::string spec;
  std::function<void(Layers&, const Gradients&, int t, double lr)> formula;
};

std::vector<Preset> presets() {
  using namespace reference;
  std::vector<Preset> all = {
      {"adamw",
       [](auto& x, auto& g, int t, double lr) { torch_adamw(x, g, t, lr, 0.9, 0.999, 1e-8); }},
      {"adamw:beta1=0.5,beta2=0.9,epsilon=0.001",
       [](auto& x, auto& g, int t, double lr) { torch_adamw(x, g, t, lr, 0.5, 0.9, 1e-3); }},
      {"lamb:preset=paper-v1", paper_v1_lamb},
      {"lamb:preset=apex",
       [](auto& x, auto& g, int t, double lr) { apex_lamb(x, g, t, lr, false); }},
      {"lamb:preset=nvlamb",
       [](auto& x, auto& g, int t, double lr) { apex_lamb(x, g, t, lr, true); }},
      {"lamb:preset=tf-addons", tf_addons_lamb},
      {"lamb:preset=timm",
       [](auto& x, auto& g, int t, double lr) { timm_lamb(x, g, t, lr, false); }},
      {"lamb:preset=lambc",
       [](auto& x, auto& g, int t, double lr) { timm_lamb(x, g, t, lr, true); }},
      {"lamb:preset=optax", optax_lamb},
      {"lamb:preset=paper", optax_lamb},
  };
  using Lars = void (*)(Layers&, const Gradients&, const LarsPresetSettings&);
  const std::pair<const char*, Lars> lars[] = {
      {"lars:preset=timm", timm_lars},
      {"lars:preset=torch-optimizer", torch_optimizer_lars},
      {"lars:preset=optax", optax_lars},
      {"larc:", apex_larc}};
  for (const auto& [spec, formula] : lars) {
    for (const bool nesterov : {false, true}) {
      all.push_back({concat(spec, std::string_view(spec).ends_with(':') ? "" : ",",
                            "momentum=0.8,nesterov=", nesterov ? 1 : 0),
                     [formula, nesterov](auto& x, auto& g, int, double lr) {
                       formula(x, g, {.lr = lr, .momentum = 0.8, .nesterov = nesterov});
                     }});
    }
  }
  return all;
}

void PrintTo(const Preset& preset, std::ostream* out) { *out << preset.spec; }

class OptimizerPresets : public testing::TestWithParam<Preset> {};

INSTANTIATE_TEST_SUITE_P(All, OptimizerPresets, testing::ValuesIn(presets()), [](const auto& row) {
  std::string name = row.param.spec;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

Vector widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

double rate_of(int t) { return 0.02 * (1.5 + std::sin(t)); }

/// Errors of float32 steps add up: relative to the largest element, some of each step's.
void expect_close(const std::vector<float>& actual, const Vector& expected, int steps,
                  const std::string& what) {
  double largest = 1e-30;
  for (double x : expected) {
    largest = std::max(largest, std::fabs(x));
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], (1e-6 + 1e-7 * steps) * largest) << what << " " << i;
  }
}

void expect_steps(const Preset& preset, Model& model, int steps) {
  SCOPED_TRACE(concat(preset.spec, ", seed ", kModelSeed));
  OptimizerSpec spec = parse_optimizer(preset.spec);
  spec.weight_decay = kDecay;
  std::vector<Parameter> parameters = model.parameters();
  const GroupRule biases{[](const Parameter& p) { return p.name == "layer2"; },
                         {.weight_decay = 0.0}};
  const auto groups = assign_groups(parameters, {&biases, 1});
  const auto optimizer = make_optimizer(spec, parameters, groups);
  Layers layers;
  for (const Parameter& p : parameters) {
    const auto& value = model.values[layers.size()];
    layers.push_back({widened(value), Vector(value.size()), Vector(value.size()),
                      groups[p.group].weight_decay.value_or(kDecay)});
  }
  for (int t = 1; t <= steps; ++t) {
    model.fill_gradients(static_cast<unsigned>(t));
    if (t % 7 == 0) {
      std::ranges::fill(model.gradients[3], 0.0f);
    }
    step(*optimizer, rate_of(t), 2);
    Gradients gradients;
    for (const auto& g : model.gradients) {
      gradients.push_back(widened(g));
    }
    preset.formula(layers, gradients, t, rate_of(t));
    for (size_t l = 0; t % 50 == 0 || t == 1 ? l < layers.size() : false; ++l) {
      expect_close(model.values[l], layers[l].w, t, concat("step ", t, " layer", l));
    }
    if (testing::Test::HasFatalFailure()) {
      return;
    }
  }
}

TEST_P(OptimizerPresets, FollowTheirSource) {
  Model model({0, 1, 1023, 500, 5001, 64});
  std::ranges::fill(model.values[5], 0.0f);  // a norm of 0 to begin with
  expect_steps(GetParam(), model, kSteps);
}

TEST(OptimizerPreset, FollowsItsSourceOverAMillionElements) {
  Model model({3, 1000000, 5, 7});
  expect_steps({"lamb:preset=nvlamb", [](auto& x, auto& g, int t,
                                         double lr) { reference::apex_lamb(x, g, t, lr, true); }},
               model, 3);
}

TEST(OptimizerPreset, EveryOneOfTheRegistryIsTestedAndSetsWhatItSays) {
  for (const OptimizerRow& row : optimizer_registry()) {
    for (const OptimizerPreset& preset : row.presets) {
      const std::string text = concat(row.name, ":preset=", preset.name);
      const std::string keys = concat(row.name, preset.keys.empty() ? "" : ":", preset.keys);
      EXPECT_EQ(parse_optimizer(text), parse_optimizer(keys)) << text;
      EXPECT_FALSE(preset.source.empty());
      // In formula_test, and in outer_test and onebit_test.
      const bool tested =
          (row.name == "lars" && preset.name == "paper") || row.exchanges != Exchanged::kGradients;
      EXPECT_TRUE(
          tested ||
          std::ranges::any_of(presets(), [&](const Preset& p) { return p.spec.starts_with(text); }))
          << text;
    }
  }
}

}  // namespace
}  // namespace gradwire
