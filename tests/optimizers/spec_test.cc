// The text form of an optimizer, the registry, and the schedules.

#include <gtest/gtest.h>

#include "gradwire/optimizers/schedule.h"
#include "tests/optimizers/model.h"

namespace gradwire {
namespace {

std::string refusal(std::string_view text) {
  return message_of<InvalidArgument>([&] { parse_optimizer(text); });
}

TEST(OptimizerSpecText, ReadsNamesAndKeys) {
  EXPECT_EQ(parse_optimizer("sgd"), OptimizerSpec{});
  EXPECT_EQ(parse_optimizer("sgd:momentum=0.5,nesterov=1,weight_decay=1e-4"),
            (OptimizerSpec{.momentum = 0.5, .nesterov = true, .weight_decay = 1e-4}));
  EXPECT_EQ(parse_optimizer("lars:trust_coefficient=0.02,epsilon=1e-9"),
            (OptimizerSpec{.name = "lars", .epsilon = 1e-9, .trust_coefficient = 0.02}));
  EXPECT_EQ(parse_optimizer("lamb:beta1=0.8,beta2=0.99,weight_decay=0.01"),
            (OptimizerSpec{.name = "lamb", .beta1 = 0.8, .beta2 = 0.99, .weight_decay = 0.01}));
}

TEST(OptimizerSpecText, WritesWhatDiffersFromTheDefaultsAndReadsItBack) {
  EXPECT_EQ(to_string(OptimizerSpec{}), "sgd");
  EXPECT_EQ(to_string(OptimizerSpec{.momentum = 0.1, .nesterov = true}),
            "sgd:momentum=0.1,nesterov=1");
  EXPECT_EQ(to_string(OptimizerSpec{.name = "lamb", .epsilon = 1e-8, .weight_decay = 0.01}),
            "lamb:epsilon=1e-08,weight_decay=0.01");
  for (const char* text : {"sgd:weight_decay=0.1", "lars:momentum=0.30000000000000004",
                           "lamb:beta1=0.25,beta2=0.5,epsilon=3e-30,weight_decay=12"}) {
    EXPECT_EQ(to_string(parse_optimizer(text)), text);
  }
}

TEST(OptimizerSpecText, UnknownNamesAndKeysListTheKnownOnes) {
  EXPECT_EQ(refusal("adam"),
            "optimizer: unknown name 'adam' (did you mean 'adamw'?), known: sgd, adamw, lars, "
            "larc, lamb, onebit-adam, onebit-lamb, diloco");
  EXPECT_EQ(refusal(""),
            "optimizer: unknown name '', known: sgd, adamw, lars, larc, lamb, onebit-adam, "
            "onebit-lamb, diloco");
  EXPECT_EQ(refusal("sgd:beta1=0.9"),
            "sgd key: unknown name 'beta1', known: momentum in [0, 1), nesterov 0 or 1, "
            "weight_decay >= 0, max_grad_norm >= 0, master remainder or float32, "
            "state float32 or 8bit, min_8bit_size a whole number from 0");
  EXPECT_EQ(refusal("adamw:eta=1"),
            "adamw key: unknown name 'eta', known: beta1 in [0, 1), beta2 in [0, 1), epsilon > 0, "
            "weight_decay >= 0, max_grad_norm >= 0, master remainder or float32, "
            "state float32 or 8bit, min_8bit_size a whole number from 0");
  EXPECT_EQ(refusal("lamb:"),
            "lamb key: unknown name '', known: beta1 in [0, 1), beta2 in [0, 1), epsilon > 0, "
            "weight_decay >= 0, max_grad_norm >= 0, max_ratio >= 0, min_norm >= 0, max_norm >= 0, "
            "adapt_undecayed 0 or 1, master remainder or float32, state float32 or 8bit, "
            "min_8bit_size a whole number from 0, preset");
  EXPECT_EQ(refusal("lamb:preset=fast"),
            "lamb preset: unknown name 'fast', known: paper, paper-v1, apex, nvlamb, tf-addons, "
            "timm, lambc, optax");
  EXPECT_EQ(refusal("lamb:beta1=0,preset"), refusal("lamb:preset="));
}

TEST(OptimizerSpecText, APresetStandsForItsKeysAndOthersChangeIt) {
  const OptimizerSpec apex = parse_optimizer("lamb:preset=apex");
  EXPECT_EQ(apex.max_grad_norm, 1.0);
  EXPECT_FALSE(apex.adapt_undecayed);
  EXPECT_EQ(to_string(apex), "lamb:max_grad_norm=1,adapt_undecayed=0");
  EXPECT_EQ(parse_optimizer("lamb:max_grad_norm=2,preset=apex"),
            parse_optimizer("lamb:preset=apex,max_grad_norm=2"));
  EXPECT_EQ(parse_optimizer("lamb:max_grad_norm=2,preset=apex").max_grad_norm, 2.0);
  EXPECT_EQ(refusal("lamb:preset=apex,preset=apex"), "lamb: preset is given twice, expected once");
  EXPECT_EQ(refusal("sgd:preset=timm").substr(0, 29), "sgd key: unknown name 'preset");
}

TEST(OptimizerSpecText, MastersAreWrittenByName) {
  EXPECT_EQ(parse_optimizer("sgd:master=float32").master, MasterWeights::kFloat32);
  EXPECT_EQ(to_string(parse_optimizer("lamb:master=float32")), "lamb:master=float32");
  EXPECT_EQ(to_string(parse_optimizer("adamw:master=remainder")), "adamw");
  EXPECT_EQ(refusal("sgd:master=1"), "sgd: master is '1', must be remainder or float32");
  EXPECT_EQ(refusal("sgd:master"),
            "sgd: 'master' has no value, expected master=NAME, remainder or float32");
  EXPECT_EQ(message_of<InvalidArgument>([] {
              to_string(OptimizerSpec{});
              std::vector<float> w(1), g(1);
              make_optimizer({.master = static_cast<MasterWeights>(7)},
                             {{"w", view_of(std::span(w)), view_of(std::span(g))}});
            }),
            "sgd: master is 7, must be remainder or float32");
}

TEST(OptimizerSpecText, StateIsWrittenByNameAndItsLeastSizeIsWhole) {
  EXPECT_EQ(parse_optimizer("adamw:state=8bit").state, StateBits::kEight);
  EXPECT_EQ(parse_optimizer("adamw:state=8bit").min_8bit_size, 4096u);
  EXPECT_EQ(parse_optimizer("adamw:min_8bit_size=12345678").min_8bit_size, 12345678u);
  EXPECT_EQ(to_string(parse_optimizer("lamb:min_8bit_size=0,state=8bit")),
            "lamb:state=8bit,min_8bit_size=0");
  EXPECT_EQ(to_string(parse_optimizer("sgd:state=float32")), "sgd");
  EXPECT_EQ(refusal("sgd:state=4bit"), "sgd: state is '4bit', must be float32 or 8bit");
  EXPECT_EQ(refusal("sgd:min_8bit_size=0.5"),
            "sgd: min_8bit_size is 0.5, must be a whole number from 0");
  EXPECT_EQ(refusal("sgd:min_8bit_size=-1"),
            "sgd: min_8bit_size is -1, must be a whole number from 0");
  EXPECT_EQ(refusal("diloco:state=8bit").substr(0, 33), "diloco key: unknown name 'state',");
}

TEST(OptimizerSpecText, DefaultsAreTheRows) {
  EXPECT_EQ(default_spec("adamw").epsilon, 1e-8);
  EXPECT_EQ(default_spec("adamw").weight_decay, 0.01);
  EXPECT_EQ(to_string(default_spec("adamw")), "adamw");
  EXPECT_TRUE(parse_optimizer("larc").clip_rate.value());
  EXPECT_EQ(to_string(parse_optimizer("larc:clip_rate=0")), "larc:clip_rate=0");
}

TEST(OptimizerSpecText, FieldsThatNobodyFilledAreTheRows) {
  const OptimizerSpec adamw = filled({.name = "adamw"});
  EXPECT_EQ(adamw.epsilon, 1e-8);
  EXPECT_EQ(adamw.weight_decay, 0.01);
  const OptimizerSpec larc = filled({.name = "larc", .epsilon = 0.5});
  EXPECT_EQ(larc.epsilon, 0.5);
  EXPECT_EQ(larc.trust_coefficient, 0.02);
  EXPECT_EQ(larc.rate_in_momentum, false);
  EXPECT_EQ(larc.clip_rate, true);
  EXPECT_EQ(larc.decay_at_zero, false);
  EXPECT_EQ(filled({.name = "onebit-lamb"}).variance_floor, 0.01);
  EXPECT_EQ(filled({.name = "diloco"}).nesterov, true);
  for (const OptimizerRow& row : optimizer_registry()) {
    SCOPED_TRACE(std::string(row.name));
    const OptimizerSpec by_hand{.name = std::string(row.name)};
    EXPECT_EQ(to_string(by_hand), row.name);
    EXPECT_EQ(by_hand, parse_optimizer(row.name));
  }
  EXPECT_EQ(to_string(OptimizerSpec{.name = "adamw", .weight_decay = 0.0}), "adamw:weight_decay=0");
  EXPECT_FALSE((OptimizerSpec{.name = "adamw", .weight_decay = 0.0} == parse_optimizer("adamw")));
}

// A gradient of 0: AdamW's step is its decay, w -= lr wd w, alone.
TEST(OptimizerSpecText, AnOptimizerFilledByHandStepsAsTheRowSays) {
  std::vector<float> w{2.0f}, g{0.0f};
  const auto optimizer =
      make_optimizer({.name = "adamw"}, {{"w", view_of(std::span(w)), view_of(std::span(g))}});
  apply(*optimizer, 0.5);
  EXPECT_FLOAT_EQ(w[0], 2.0f - 0.5f * 0.01f * 2.0f);
}

TEST(OptimizerSpecText, ValuesOutOfRangeNameTheRange) {
  EXPECT_EQ(refusal("sgd:momentum=1"), "sgd: momentum is 1, must be in [0, 1)");
  EXPECT_EQ(refusal("sgd:momentum=nan"), "sgd: momentum is nan, must be in [0, 1)");
  EXPECT_EQ(refusal("sgd:nesterov=2"), "sgd: nesterov is 2, must be 0 or 1");
  EXPECT_EQ(refusal("lamb:beta2=-0.5"), "lamb: beta2 is -0.5, must be in [0, 1)");
  EXPECT_EQ(refusal("lamb:epsilon=0"), "lamb: epsilon is 0, must be > 0");
  // What a step's float32 would round to a bound.
  EXPECT_EQ(refusal("adamw:epsilon=1e-60"),
            "adamw: epsilon is 1e-60 and 0 as float32, must be > 0");
  EXPECT_EQ(refusal("adamw:epsilon=1e60"),
            "adamw: epsilon is 1e+60 and inf as float32, must be > 0");
  EXPECT_EQ(refusal("sgd:momentum=0.999999999999"),
            "sgd: momentum is 0.999999999999 and 1 as float32, must be in [0, 1)");
  EXPECT_EQ(refusal("sgd:momentum=1.00000001"),
            "sgd: momentum is 1.00000001 and 1 as float32, must be in [0, 1)");
  EXPECT_EQ(refusal("sgd:momentum=-0.3"), "sgd: momentum is -0.3, must be in [0, 1)");
  EXPECT_EQ(refusal("onebit-adam:variance_floor=1.00000001"),
            "onebit-adam: variance_floor is 1.00000001 and 1 as float32, must be in [0, 1]");
  EXPECT_EQ(refusal("lars:trust_coefficient=0"), "lars: trust_coefficient is 0, must be > 0");
  EXPECT_EQ(refusal("lars:weight_decay=inf"), "lars: weight_decay is inf, must be >= 0");
}

TEST(OptimizerSpecText, MalformedItemsSayWhatWasExpected) {
  EXPECT_EQ(refusal("sgd:momentum"),
            "sgd: 'momentum' has no value, expected momentum=NUMBER, in [0, 1)");
  EXPECT_EQ(refusal("sgd:momentum=0.9x"), "sgd: momentum is '0.9x', must be a number in [0, 1)");
  EXPECT_EQ(refusal("sgd:momentum="), "sgd: momentum is '', must be a number in [0, 1)");
  EXPECT_EQ(refusal("sgd:momentum=0.9,momentum=0.8"),
            "sgd: momentum is given twice, expected once");
}

TEST(OptimizerRegistry, MakesWhatItListsAndChecksSpecsMadeByHand) {
  for (const OptimizerRow& row : optimizer_registry()) {
    SCOPED_TRACE(std::string(row.name));
    Model model({3});
    EXPECT_EQ(make_optimizer({.name = std::string(row.name)}, model.parameters())->spec().name,
              row.name);
    for (std::string_view text : {row.summary, row.formula, row.source}) {
      EXPECT_FALSE(text.empty());
    }
    OptimizerSpec bad{.name = std::string(row.name), .max_grad_norm = -1.0};
    EXPECT_EQ(message_of<InvalidArgument>([&] { make_optimizer(bad, model.parameters()); }),
              std::string(row.name) + ": max_grad_norm is -1, must be >= 0");
  }
  EXPECT_EQ(message_of<InvalidArgument>([] { make_optimizer({.name = "adam"}, {}); }),
            "optimizer: unknown name 'adam' (did you mean 'adamw'?), known: sgd, adamw, lars, "
            "larc, lamb, onebit-adam, onebit-lamb, diloco");
}

TEST(Schedule, WarmupClimbsInEqualStepsToTheBase) {
  EXPECT_DOUBLE_EQ(warmup(0.8, 0, 4), 0.2);
  EXPECT_DOUBLE_EQ(warmup(0.8, 2, 4), 0.6);
  EXPECT_DOUBLE_EQ(warmup(0.8, 3, 4), 0.8);
  EXPECT_DOUBLE_EQ(warmup(0.8, 4, 4), 0.8);
  EXPECT_DOUBLE_EQ(warmup(0.8, 0, 0), 0.8);
}

TEST(Schedule, PolynomialDecaysFromThePeakToZero) {
  const PolynomialSchedule schedule{.base = 2.0, .warmup_steps = 2, .total_steps = 6, .power = 2.0};
  const double expected[] = {1.0, 2.0, 2.0, 1.125, 0.5, 0.125, 0.0, 0.0};
  for (uint64_t step = 0; step < std::size(expected); ++step) {
    EXPECT_DOUBLE_EQ(schedule.at(step), expected[step]) << step;
  }
  EXPECT_DOUBLE_EQ((PolynomialSchedule{.base = 1.0, .total_steps = 4}.at(1)), 0.75);
}

TEST(Schedule, AWarmupAsLongAsTheRunNeverDecays) {
  const PolynomialSchedule schedule{.base = 1.0, .warmup_steps = 4, .total_steps = 4};
  EXPECT_DOUBLE_EQ(schedule.at(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(4), 0.0);
}

}  // namespace
}  // namespace gradwire
