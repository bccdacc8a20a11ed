// What holds for every optimizer of the registry.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "tests/optimizers/laws.h"

namespace gradwire {
namespace {

INSTANTIATE_TEST_SUITE_P(Registry, OptimizerLaws, testing::ValuesIn(all_specs()), name_of_spec);
// What these do behind their freeze is in onebit_test.cc; outer_test.cc has what reads no
// gradients.
INSTANTIATE_TEST_SUITE_P(OneBit, OptimizerLaws,
                         testing::Values(parse_optimizer("onebit-adam"),
                                         parse_optimizer("onebit-lamb:preset=deepspeed")),
                         name_of_spec);

TEST_P(OptimizerLaws, AnyNumberOfThreadsGivesTheSameBits) {
  Model expected;
  const auto alone = make(expected);
  for (unsigned t = 0; t < 3; ++t) {
    expected.fill_gradients(t);
    step(*alone, 0.1, 1);
  }
  for (int threads : {2, 3, 5}) {
    SCOPED_TRACE(threads);
    Model model;
    const auto optimizer = make(model);
    for (unsigned t = 0; t < 3; ++t) {
      model.fill_gradients(t);
      step(*optimizer, 0.1, threads);
    }
    EXPECT_TRUE(same_bits(model.values, expected.values));
    EXPECT_TRUE(same_bits(read_state(*optimizer), read_state(*alone)));
  }
}

TEST_P(OptimizerLaws, AllParametersAtOnceEqualsOneByOne) {
  if (GetParam().max_grad_norm != 0.0) {
    GTEST_SKIP() << "gradients are clipped all together";
  }
  Model together, apart;
  const auto optimizer = make(together);
  std::vector<std::unique_ptr<Optimizer>> singles;
  for (const Parameter& parameter : apart.parameters(3)) {
    singles.push_back(make_optimizer(GetParam(), {parameter}, model_groups()));
  }
  for (unsigned t = 0; t < 3; ++t) {
    together.fill_gradients(t);
    apart.fill_gradients(t);
    step(*optimizer, 0.1, 2);
    for (const auto& single : singles) {
      step(*single, 0.1);
    }
  }
  EXPECT_TRUE(same_bits(together.values, apart.values));
}

TEST_P(OptimizerLaws, GradientsAreReadOnlyAndPrepareChangesNothing) {
  Model model;
  const auto optimizer = make(model);
  const Model before = model;
  step(*optimizer, 0.1);
  EXPECT_TRUE(same_bits(model.gradients, before.gradients));
  EXPECT_FALSE(same_bits(model.values, before.values));

  const Model after = model;
  const State state = read_state(*optimizer);
  const auto stream = make_cpu_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  optimizer->prepare(context);
  stream->wait();
  EXPECT_TRUE(same_bits(model.values, after.values));
  EXPECT_TRUE(same_bits(model.gradients, after.gradients));
  EXPECT_TRUE(same_bits(read_state(*optimizer), state));
}

TEST_P(OptimizerLaws, ANonFiniteGradientChangesNothing) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  struct Place {
    size_t parameter, element;
    float value;
  };
  Model clean;
  const auto undisturbed = make(clean);
  step(*undisturbed, 0.1);
  Model model;
  const auto optimizer = make(model);
  step(*optimizer, 0.1);
  const State state = read_state(*optimizer);
  for (const Place& place :
       {Place{0, 0, std::nanf("")}, Place{1, 6, kInfinity}, Place{4, 1024, -kInfinity},
        Place{5, 100002, std::nanf("")}, Place{5, 50000, kInfinity}}) {
    const std::string name = "layer" + std::to_string(place.parameter);
    SCOPED_TRACE(name);
    const float good = std::exchange(model.gradients[place.parameter][place.element], place.value);
    const std::string message = message_of<NonFiniteGradient>([&] { step(*optimizer, 0.1, 2); });
    EXPECT_NE(message.find("'" + name + "': element " + std::to_string(place.element) + " is "),
              std::string::npos)
        << message;
    model.gradients[place.parameter][place.element] = good;
    ASSERT_TRUE(same_bits(model.values, clean.values));
    ASSERT_TRUE(same_bits(read_state(*optimizer), state));
  }
  step(*undisturbed, 0.1);
  step(*optimizer, 0.1);
  EXPECT_TRUE(same_bits(model.values, clean.values));
  EXPECT_TRUE(same_bits(read_state(*optimizer), read_state(*undisturbed)));
}

TEST_P(OptimizerLaws, AFailureOnTheStreamDropsWhatWasQueuedBehindIt) {
  Model clean;
  const auto undisturbed = make(clean);
  step(*undisturbed, 0.1);
  Model model;
  const auto optimizer = make(model);
  const auto stream = make_cpu_stream({.threads = 2});
  Workspace workspace;
  Context context{*stream, workspace};
  optimizer->apply(0.1, context);
  stream->enqueue([&] { model.gradients[2][5] = std::nanf(""); });
  optimizer->apply(0.1, context);
  stream->enqueue([&] { model.gradients[2][5] = 0.0f; });
  optimizer->apply(0.1, context);
  EXPECT_THROW(stream->wait(), NonFiniteGradient);
  EXPECT_TRUE(same_bits(model.values, clean.values));
  EXPECT_TRUE(same_bits(read_state(*optimizer), read_state(*undisturbed)));
}

TEST_P(OptimizerLaws, CopiedStateContinuesWithTheSameBits) {
  Model model;
  const auto optimizer = make(model);
  for (unsigned t = 0; t < 2; ++t) {
    model.fill_gradients(t);
    step(*optimizer, 0.1);
  }
  Model copy = model;
  const auto restored = make(copy);
  write_state(*restored, read_state(*optimizer));
  for (unsigned t = 2; t < 4; ++t) {
    model.fill_gradients(t);
    copy.fill_gradients(t);
    step(*optimizer, 0.1);
    step(*restored, 0.1);
  }
  EXPECT_TRUE(same_bits(copy.values, model.values));
  EXPECT_TRUE(same_bits(read_state(*restored), read_state(*optimizer)));
  EXPECT_EQ(read_state(*restored).scalars.at("layer0/step"), 4u);
}

TEST_P(OptimizerLaws, MemoryAroundAParameterIsLeftAlone) {
  constexpr size_t kGuard = 64;
  for (size_t size : kModelSizes) {
    SCOPED_TRACE(size);
    std::vector<float> value(size + 2 * kGuard, 7.0f);
    std::vector<float> gradient(size + 2 * kGuard, std::nanf(""));  // reading it would be noticed
    std::fill_n(gradient.begin() + kGuard, size, 0.5f);
    const auto optimizer = make_optimizer(
        GetParam(), {{.name = "w",
                      .value = view_of(std::span(value).subspan(kGuard, size)),
                      .gradient = view_of(std::span(gradient).subspan(kGuard, size))}});
    step(*optimizer, 0.1);
    for (size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(value[i], 7.0f);
      ASSERT_EQ(value[kGuard + size + i], 7.0f);
    }
    for (size_t i = kGuard; i < kGuard + size; ++i) {
      ASSERT_LT(value[i], 7.0f) << i;
    }
  }
}

TEST_P(OptimizerLaws, ARateOfZeroLeavesTheParametersAndARateOutOfRangeIsRefused) {
  Model model({1025});
  const auto optimizer = make_optimizer(GetParam(), model.parameters());
  const Model before = model;
  step(*optimizer, 0.0);
  EXPECT_EQ(model.values, before.values);
  for (double rate : {-0.1, HUGE_VAL, std::nan(""), 1e300}) {
    const std::string message = message_of<InvalidArgument>([&] { step(*optimizer, rate); });
    EXPECT_EQ(message,
              concat(GetParam().name, ": learning_rate is ", rate, ", must be finite and >= 0"));
  }
}

TEST_P(OptimizerLaws, ScaledGradientsStepAsTheirUnscaledOnesDo) {
  Model scaled, plain;
  const auto of_scaled = make(scaled), of_plain = make(plain);
  const auto stream = make_inline_stream(1);
  Workspace workspace;
  Context context{*stream, workspace};
  for (unsigned t = 0; t < 3; ++t) {
    scaled.fill_gradients(t);
    plain.fill_gradients(t);
    for (auto& gradient : scaled.gradients) {
      for (float& x : gradient) {
        x *= 1024.0f;  // exact
      }
    }
    of_scaled->apply({.learning_rate = 0.1, .gradient_scale = 1.0 / 1024.0}, context);
    of_plain->apply({.learning_rate = 0.1, .known_finite = true}, context);
    stream->wait();
  }
  EXPECT_TRUE(same_bits(scaled.values, plain.values));
  EXPECT_TRUE(same_bits(read_state(*of_scaled), read_state(*of_plain)));
  for (double scale : {0.0, -1.0, 1.5, std::nan("")}) {
    EXPECT_EQ(message_of<InvalidArgument>([&] {
                of_plain->apply({.learning_rate = 0.1, .gradient_scale = scale}, context);
              }),
              concat(GetParam().name, ": gradient_scale is ", scale, ", must be in (0, 1]"));
  }
}

// A group that does not adapt has LAMB's ratio 1.
TEST(OptimizerLaw, LambWithRatioOneIsAdamW) {
  Model lamb, adamw;
  const auto plain = make_optimizer(parse_optimizer("lamb:weight_decay=0.1"), lamb.parameters(),
                                    {{.adapt = false}});
  const auto other =
      make_optimizer(parse_optimizer("adamw:weight_decay=0.1,epsilon=1e-6"), adamw.parameters());
  for (unsigned t = 0; t < 5; ++t) {
    lamb.fill_gradients(t);
    adamw.fill_gradients(t);
    step(*plain, 0.1);
    step(*other, 0.1);
  }
  EXPECT_TRUE(same_bits(lamb.values, adamw.values));
  EXPECT_TRUE(same_bits(read_state(*plain), read_state(*other)));
}

TEST(OptimizerLaw, LarsWithoutDecayIgnoresTheGradientsScale) {
  Model small, large;
  const char* const text = "lars:epsilon=1e-30,trust_coefficient=0.1";
  const auto of_small = make_optimizer(parse_optimizer(text), small.parameters());
  const auto of_large = make_optimizer(parse_optimizer(text), large.parameters());
  for (unsigned t = 0; t < 5; ++t) {
    small.fill_gradients(t);
    large.fill_gradients(t);
    for (auto& gradient : large.gradients) {
      for (float& x : gradient) {
        x *= 4096.0f;  // exact, so that nothing else changes
      }
    }
    step(*of_small, 0.1);
    step(*of_large, 0.1);
  }
  for (size_t l = 0; l < small.values.size(); ++l) {
    for (size_t i = 0; i < small.values[l].size(); ++i) {
      ASSERT_NEAR(small.values[l][i], large.values[l][i], 2e-6f) << l << " " << i;
    }
  }
}

TEST(OptimizerLaw, ClippingScalesAllGradientsTogether) {
  Model model({100, 3000}), halved({100, 3000});
  double squares = 0.0;
  for (const auto& gradient : model.gradients) {
    for (float x : gradient) {
      squares += double{x} * double{x};
    }
  }
  OptimizerSpec spec = parse_optimizer("sgd:momentum=0");
  const auto plain = make_optimizer(spec, halved.parameters());
  for (auto& gradient : halved.gradients) {
    for (float& x : gradient) {
      x *= 0.5f;
    }
  }
  spec.max_grad_norm = 0.5 * std::sqrt(squares);
  const auto clipped = make_optimizer(spec, model.parameters());
  step(*clipped, 0.1);
  step(*plain, 0.1);
  for (size_t l = 0; l < 2; ++l) {
    for (size_t i = 0; i < model.values[l].size(); ++i) {
      ASSERT_NEAR(model.values[l][i], halved.values[l][i], 1e-6f);
    }
  }
}

TEST(OptimizerParameters, AreAssignedToTheGroupOfTheFirstRuleThatApplies) {
  Model model({8, 8, 8});
  std::vector<Parameter> parameters = model.parameters();
  const GroupRule rules[] = {
      {[](const Parameter& p) { return p.name == "layer1"; },
       {.weight_decay = 0.0, .adapt = false}},
      {[](const Parameter& p) { return p.name != "layer0"; }, {.learning_rate_scale = 2.0}}};
  const auto groups = assign_groups(parameters, rules);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(parameters[0].group, 0u);
  EXPECT_EQ(parameters[1].group, 1u);
  EXPECT_EQ(parameters[2].group, 2u);
  EXPECT_FALSE(groups[1].adapt);
  EXPECT_EQ(groups[2].learning_rate_scale, 2.0);
  const GroupRule empty[] = {{nullptr, {}}};
  EXPECT_EQ(message_of<InvalidArgument>([&] { assign_groups(parameters, empty); }),
            "rules[0]: applies is empty, expected a predicate");
}

std::string refusal(std::vector<Parameter> parameters, std::vector<ParamGroup> groups = {}) {
  return message_of<InvalidArgument>(
      [&] { make_optimizer({}, std::move(parameters), std::move(groups)); });
}

TEST(OptimizerParameters, AreCheckedWithTheNameOfTheOneAtFault) {
  Model model({8});
  const Parameter good = model.parameters()[0];
  EXPECT_EQ(refusal({}), "sgd: there are 0 parameters, expected at least 1");

  Parameter bad = good;
  bad.gradient = bad.gradient.subview(0, 7);
  EXPECT_EQ(refusal({good, bad}),
            "parameter 'layer0': the gradient has 7 elements, expected 8 as the value has");
  bad = good;
  bad.value.numel = bad.gradient.numel = 0;  // nothing to step on, nothing wrong
  bad.value.data = bad.gradient.data = nullptr;
  EXPECT_EQ(refusal({bad}), "nothing was thrown");
  bad = good;
  bad.value.dtype = static_cast<DType>(3);
  EXPECT_EQ(
      refusal({bad}),
      "parameter 'layer0': value has the dtype code 3, expected float32, float16 or bfloat16");
  bad = good;
  bad.value.device.type = DeviceType::kCuda;
  EXPECT_EQ(
      refusal({bad}),
      "parameter 'layer0': gradient is in memory of the CPU, expected GPU 0's, where the first "
      "value is");
  bad = good;
  bad.gradient.data = nullptr;
  EXPECT_EQ(refusal({bad}),
            "parameter 'layer0': gradient has no memory, expected a pointer to 8 elements");
  bad = good;
  bad.group = 2;
  EXPECT_EQ(refusal({bad}, model_groups()), "nothing was thrown");
  bad.group = 3;
  EXPECT_EQ(refusal({bad}, model_groups()),
            "parameter 'layer0': group is 3, must be below 3, the number of groups");
}

TEST(OptimizerParameters, MustNotShareMemory) {
  std::vector<float> w(10), g(10);
  const auto parameter = [](const char* name, std::span<float> value, std::span<float> gradient) {
    return Parameter{name, view_of(value), view_of(gradient)};
  };
  const std::span<float> values(w), gradients(g);
  EXPECT_EQ(refusal({parameter("a", values.first(5), gradients.first(5)),
                     parameter("b", values.last(5), gradients.last(5))}),
            "nothing was thrown");
  EXPECT_NE(refusal({parameter("a", values.first(5), gradients.first(5)),
                     parameter("b", values.last(6), gradients.last(6))})
                .find("shares memory with the value of 'a'"),
            std::string::npos);
  EXPECT_NE(refusal({parameter("a", values, values)}).find("shares memory"), std::string::npos);
  EXPECT_NE(refusal({parameter("a", values.first(8), gradients.first(8)),
                     parameter("b", gradients.subspan(2, 2), values.subspan(8, 2))})
                .find("shares memory with the gradient of 'a'"),
            std::string::npos);
}

TEST(OptimizerParameters, GroupsAreChecked) {
  Model model({8});
  EXPECT_EQ(refusal(model.parameters(), {{.weight_decay = -1.0}}),
            "group 0: weight_decay is -1, must be >= 0");
  EXPECT_EQ(refusal(model.parameters(), {{.momentum = 1.0}}),
            "group 0: momentum is 1, must be in [0, 1)");
  EXPECT_EQ(refusal(model.parameters(), {{}, {.learning_rate_scale = HUGE_VAL}}),
            "group 1: learning_rate_scale is inf, must be >= 0");
}

}  // namespace
}  // namespace gradwire
