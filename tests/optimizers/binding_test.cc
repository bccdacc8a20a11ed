// Parameters whose memory, gradients and settings change between steps.

#include <cmath>

#include "tests/optimizers/laws.h"

namespace gradwire {
namespace {

using OptimizerBinding = OptimizerLaws;
INSTANTIATE_TEST_SUITE_P(Registry, OptimizerBinding, testing::ValuesIn(all_specs()), name_of_spec);

std::vector<Binding> places_of(std::vector<Parameter> parameters) {
  std::vector<Binding> places;
  for (const Parameter& parameter : parameters) {
    places.push_back({parameter.value, parameter.gradient});
  }
  return places;
}

TEST_P(OptimizerBinding, StepsFollowTheMemoryTheyAreBoundTo) {
  Model expected, first;
  const auto undisturbed = make(expected);
  const auto moved = make(first);
  step(*undisturbed, 0.1);
  step(*moved, 0.1);
  Model second = first;
  moved->bind(places_of(second.parameters()));
  expected.fill_gradients(1);
  second.fill_gradients(1);
  const Model left = first;
  step(*undisturbed, 0.1);
  step(*moved, 0.1);
  EXPECT_TRUE(same_bits(second.values, expected.values));
  EXPECT_TRUE(same_bits(first.values, left.values));
  EXPECT_TRUE(same_bits(read_state(*moved), read_state(*undisturbed)));
}

TEST_P(OptimizerBinding, AParameterWithoutAGradientIsLeftOut) {
  Model model, others;  // the others: as if the one left out were not there at all
  const auto optimizer = make(model);
  std::vector<Parameter> rest = others.parameters(3);
  rest.erase(rest.begin() + 4);
  const auto of_rest = make_optimizer(GetParam(), rest, model_groups());
  std::vector<Binding> places = places_of(model.parameters());
  places[4].gradient = {};
  optimizer->bind(places);
  const State before = read_state(*optimizer);
  const std::vector<float> value = model.values[4];
  model.gradients[4][3] = std::nanf("");  // reading it would be noticed
  for (unsigned t = 0; t < 2; ++t) {
    step(*optimizer, 0.1, 2);
    step(*of_rest, 0.1);
  }
  const State after = read_state(*optimizer), expected = read_state(*of_rest);
  EXPECT_TRUE(same_bits(model.values[4], value));
  EXPECT_EQ(after.scalars.at("layer4/step"), 0u);
  EXPECT_EQ(after.scalars.at("layer5/step"), 2u);
  for (size_t i : {0, 1, 2, 3, 5}) {
    EXPECT_TRUE(same_bits(model.values[i], others.values[i])) << i;
  }
  for (const auto& [name, state] : after.tensors) {
    const bool left_out = name.starts_with("layer4/");
    EXPECT_TRUE(same_bits(state, left_out ? before.tensors.at(name) : expected.tensors.at(name)));
  }
  // It comes back with corrections of a first step, as if the others had not been stepped.
  Model alone;
  const auto single = make_optimizer(GetParam(), {alone.parameters(3)[4]}, model_groups());
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].gradient = {};
  }
  model.gradients[4] = alone.gradients[4];
  places[4].gradient = model.parameters()[4].gradient;
  optimizer->bind(places);
  step(*optimizer, 0.1);
  step(*single, 0.1);
  EXPECT_TRUE(same_bits(model.values[4], alone.values[4]));
}

TEST_P(OptimizerBinding, GroupsMayBeSetAgain) {
  std::vector<ParamGroup> later = model_groups();
  for (ParamGroup& group : later) {
    group.learning_rate_scale = 0.25;
    group.weight_decay = 0.125;
    group.momentum = GetParam().momentum == 0.0 ? 0.0 : 0.5;
    group.beta1 = 0.5;
    group.beta2 = 0.75;
    group.epsilon = 0.01;
  }
  Model expected, model;
  const auto meant = make_optimizer(GetParam(), expected.parameters(3), later);
  const auto optimizer = make(model);
  optimizer->set_groups(later);
  for (unsigned t = 0; t < 2; ++t) {
    step(*meant, 0.1);
    step(*optimizer, 0.1);
  }
  EXPECT_TRUE(same_bits(model.values, expected.values));
  EXPECT_TRUE(same_bits(read_state(*optimizer), read_state(*meant)));
}

TEST_P(OptimizerBinding, AStepThatIsSkippedChangesNothingAndIsCounted) {
  Model model;
  const auto optimizer = make(model);
  const State state = read_state(*optimizer);
  const Model before = model;
  model.gradients[3][17] = std::nanf("");
  const auto stream = make_inline_stream(1);
  Workspace workspace;
  Context context{*stream, workspace};
  const StepOptions skipping{.learning_rate = 0.1, .on_non_finite = OnNonFinite::kSkip};
  optimizer->apply(skipping, context);
  optimizer->synchronize(context);
  EXPECT_EQ(optimizer->skipped_steps(context), 1u);
  EXPECT_TRUE(same_bits(model.values, before.values));
  EXPECT_TRUE(same_bits(read_state(*optimizer), state));
  model.gradients[3][17] = 0.0f;
  optimizer->apply(skipping, context);
  EXPECT_EQ(optimizer->skipped_steps(context), 1u);
  EXPECT_FALSE(same_bits(model.values, before.values));
  model.gradients[3][17] = std::nanf("");
  optimizer->apply(0.1, context);
  EXPECT_THROW(optimizer->synchronize(context), NonFiniteGradient);
}

TEST(OptimizerPlaces, AreRefusedWholeAndNothingChanges) {
  Model model({5, 7}), other({5, 7});
  const auto optimizer = make_optimizer(parse_optimizer("adamw"), model.parameters());
  const std::vector<Binding> good = places_of(other.parameters());
  const auto refused = [&](const std::vector<Binding>& places) {
    return message_of<InvalidArgument>([&] { optimizer->bind(places); });
  };
  EXPECT_EQ(refused({good[0]}), "bind: 1 places, expected 2, one of each parameter");
  EXPECT_EQ(refused({good[0], good[0]}),
            "parameter 'layer1': the value has 5 elements of float32, expected 7 of float32 as "
            "before");
  EXPECT_EQ(refused({good[0], {good[1].value, good[0].gradient}}),
            "parameter 'layer1': the gradient has 5 elements, expected 7 as the value has");
  EXPECT_NE(refused({good[0], {good[1].value, good[1].value}}).find("shares memory"),
            std::string::npos);
  const auto regrouped = [&](std::vector<ParamGroup> groups) {
    return message_of<InvalidArgument>([&] { optimizer->set_groups(std::move(groups)); });
  };
  EXPECT_EQ(regrouped({{}, {}}), "adamw: there are 2 groups, expected 1 as before");
  EXPECT_EQ(regrouped({{.beta1 = 1.0}}), "group 0: beta1 is 1, must be in [0, 1)");
  EXPECT_EQ(regrouped({{.epsilon = 0.0}}), "group 0: epsilon is 0, must be > 0");
  EXPECT_EQ(regrouped({{.epsilon = 1e-60}}), "group 0: epsilon is 1e-60 and 0 as float32, must be > 0");
  EXPECT_EQ(regrouped({{.epsilon = 1e300}}), "group 0: epsilon is 1e+300 and inf as float32, must be > 0");
  EXPECT_EQ(regrouped({{.beta2 = 1 - 1e-12}}),
            "group 0: beta2 is 0.999999999999 and 1 as float32, must be in [0, 1)");
  const Model untouched = other;
  Model expected({5, 7});
  step(*make_optimizer(parse_optimizer("adamw"), expected.parameters()), 0.1);
  step(*optimizer, 0.1);
  EXPECT_TRUE(same_bits(model.values, expected.values));
  EXPECT_TRUE(same_bits(other.values, untouched.values));

  Model still({4});
  const auto sgd = make_optimizer(parse_optimizer("sgd:momentum=0"), still.parameters());
  EXPECT_EQ(message_of<InvalidArgument>([&] { sgd->set_groups({{.momentum = 0.5}}); }),
            "sgd: a group has a momentum, expected 0 as in all groups when the optimizer was made: "
            "there is no state for it");
}

}  // namespace
}  // namespace gradwire
