// Checkpoints: restored as they were, converted between float32 and 8 bits by a table that is
// searched, and refused whole.

#include <cmath>
#include <limits>

#include "tests/optimizers/coded_state.h"
#include "tests/optimizers/laws.h"
#include "tests/optimizers/saved.h"

namespace gradwire {
namespace {

std::unique_ptr<Optimizer> make(const std::string& text, Model& model) {
  return make_optimizer(parse_optimizer(text), model.parameters(3), model_groups());
}

/// Steps with the gradients of `first`, .., spread over many octaves and 0 in places.
void steps(Optimizer& optimizer, Model& model, unsigned first, unsigned count) {
  for (unsigned t = first; t < first + count; ++t) {
    model.fill_gradients(t);
    for (std::vector<float>& gradient : model.gradients) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] *= std::ldexp(i % 29 == 5 ? 0.0f : 1.0f, -static_cast<int>(i % 13));
      }
    }
    step(optimizer, 0.01);
  }
}

bool has_sign(const std::string& name) { return name.find("exp_avg_sq") == std::string::npos; }

/// The same state with every tensor of codes as floats, by the table.
State with_floats(const State& state) {
  State out = state;
  for (const auto& [name, codes] : state.bytes) {
    const ::reference::Vector floats = decoded(state, name, has_sign(name));
    out.tensors[name].assign(floats.begin(), floats.end());
    out.tensors.erase(name + ".scale");
  }
  out.bytes.clear();
  return out;
}

/// The same with floats of as many elements as `form` has codes as the nearest codes.
State with_codes(const State& state, const State& form) {
  State out = state;
  for (const auto& [name, unused] : form.bytes) {
    const std::vector<double> values = reference::code_values(has_sign(name));
    const std::vector<float>& floats = state.tensors.at(name);
    std::vector<std::byte>& codes = out.bytes[name];
    std::vector<float>& scales = out.tensors[name + ".scale"];
    for (size_t i = 0; i < floats.size(); ++i) {
      if (i % 256 == 0) {
        double largest = 0.0;
        for (size_t j = i; j < std::min(i + 256, floats.size()); ++j) {
          largest = std::max(largest, std::fabs(double{floats[j]}));
        }
        scales.push_back(static_cast<float>(reference::code_scale(largest)));
      }
      const double y = scales.back() == 0.0f ? 0.0 : std::fabs(double{floats[i]}) / scales.back();
      const int code = reference::code_of(values, has_sign(name), y, 0.5).code;
      codes.push_back(static_cast<std::byte>(code + (code != 0 && floats[i] < 0.0f ? 128 : 0)));
    }
    out.tensors.erase(name);
  }
  return out;
}

struct Form {
  const char* floats;
  const char* codes;
};
const Form kForms[] = {
    {"sgd:nesterov=1", "sgd:nesterov=1,state=8bit,min_8bit_size=1000"},
    {"adamw", "adamw:state=8bit,min_8bit_size=1"},
    {"lars", "lars:state=8bit,min_8bit_size=1024"},
    {"lamb:weight_decay=0.01", "lamb:weight_decay=0.01,state=8bit,min_8bit_size=7"},
    {"onebit-adam:freeze_step=5", "onebit-adam:freeze_step=5,state=8bit,min_8bit_size=7"},
    {"onebit-lamb:freeze_step=5", "onebit-lamb:freeze_step=5,state=8bit,min_8bit_size=7"},
};

TEST(SavedState, CodesBecomeTheFloatsOfTheTableAndTheSameValuesAgain) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.codes);
    Model model, other, back;
    const auto coded = make(form.codes, model), plain = make(form.floats, other);
    const auto again = make(form.codes, back);
    steps(*coded, model, 0, 8);
    const State state = read_state(*coded), floats = with_floats(state);
    load(*plain, state);
    EXPECT_TRUE(same_bits(read_state(*plain), floats));
    load(*again, read_state(*plain));
    EXPECT_EQ(read_state(*again).bytes.size(), state.bytes.size());
    EXPECT_TRUE(same_bits(with_floats(read_state(*again)), floats));
    // And trains as one that was given the table's floats by hand.
    Model by_hand = other;
    const auto expected = make(form.floats, by_hand);
    write_state(*expected, floats);
    steps(*plain, other, 8, 4);
    steps(*expected, by_hand, 8, 4);
    EXPECT_TRUE(same_bits(other.values, by_hand.values));
  }
}

TEST(SavedState, FloatsBecomeTheNearestCodesOfTheTable) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.codes);
    Model model, other;
    const auto plain = make(form.floats, model), coded = make(form.codes, other);
    steps(*plain, model, 0, 8);
    const State expected = with_codes(read_state(*plain), read_state(*coded));
    load(*coded, read_state(*plain));
    const State found = read_state(*coded);
    ASSERT_EQ(found.bytes.size(), expected.bytes.size());
    EXPECT_EQ(found.scalars, expected.scalars);
    for (const auto& [name, codes] : expected.bytes) {
      size_t differ = 0;
      for (size_t i = 0; i < codes.size(); ++i) {
        const int distance =
            std::to_integer<int>(codes[i]) - std::to_integer<int>(found.bytes.at(name)[i]);
        ASSERT_LE(std::abs(distance), 1) << name << " " << i;
        differ += distance != 0 ? 1 : 0;
      }
      // Half-way between codes to a part in 10^5.
      EXPECT_LE(differ, codes.size() / 2000) << name;
      EXPECT_TRUE(
          same_bits(found.tensors.at(name + ".scale"), expected.tensors.at(name + ".scale")));
    }
  }
}

// Where the two go from one state, as a part of the way: what 8 bits cost, in the state and in the
// 20 steps behind it.
TEST(SavedState, TrainingGoesOnFromEitherForm) {
  for (const auto& [from, to] :
       {std::pair{kForms[1].floats, kForms[1].codes}, std::pair{kForms[1].codes, kForms[1].floats},
        std::pair{kForms[0].floats, kForms[0].codes}}) {
    SCOPED_TRACE(concat(from, " to ", to));
    Model model;
    const auto straight = make(from, model);
    steps(*straight, model, 0, 20);
    const Model middle = model;
    Model other = model;
    const auto resumed = make(to, other);
    load(*resumed, read_state(*straight));
    steps(*straight, model, 20, 20);
    steps(*resumed, other, 20, 20);
    double way = 0.0, apart = 0.0;
    for (size_t i = 0; i < model.values[5].size(); ++i) {
      way += std::pow(double{model.values[5][i]} - double{middle.values[5][i]}, 2);
      apart += std::pow(double{model.values[5][i]} - double{other.values[5][i]}, 2);
    }
    EXPECT_GT(way, 0.0);
    EXPECT_LT(std::sqrt(apart / way), 0.12);
  }
}

TEST_P(OptimizerLaws, ASavedStateIsRestoredToTheBit) {
  Model model;
  const auto optimizer = make(model);
  for (unsigned t = 0; t < 3; ++t) {
    model.fill_gradients(t);
    step(*optimizer, 0.1);
  }
  Model copy = model;
  const auto restored = make(copy);
  load(*restored, read_state(*optimizer));
  EXPECT_TRUE(same_bits(read_state(*restored), read_state(*optimizer)));
  step(*restored, 0.1);
  step(*optimizer, 0.1);
  EXPECT_TRUE(same_bits(copy.values, model.values));
}
INSTANTIATE_TEST_SUITE_P(Registry, OptimizerLaws, testing::ValuesIn(all_specs()), name_of_spec);

TEST(SavedState, IsRefusedWholeWhereAPieceIsWrong) {
  Model model({8, 300}), other({8, 300});
  const auto coded = make(kForms[1].codes, model);
  const auto plain = make(kForms[1].floats, other);
  steps(*coded, model, 0, 2);
  steps(*plain, other, 0, 2);
  const auto refusal = [](Optimizer& optimizer, State state, const auto& damage) {
    const State before = read_state(optimizer);
    state.scalars["layer0/step"] = 9;
    damage(state);
    const std::string message = message_of<InvalidArgument>([&] { load(optimizer, state); });
    EXPECT_TRUE(same_bits(read_state(optimizer), before)) << message;
    return message;
  };
  const State codes = read_state(*coded), floats = read_state(*plain);
  constexpr const char* kScales = "must be 0 or a power of two from 2^-87 to 2^127";
  for (const auto& [scale, text] :
       {std::pair{std::nanf(""), "nan"}, std::pair{-1.0f, "-1"}, std::pair{-0.0f, "-0"},
        std::pair{HUGE_VALF, "inf"}, std::pair{3.0f, "3"}, std::pair{0x1p-88f, "3.23117e-27"}}) {
    for (Optimizer* into : {coded.get(), plain.get()}) {
      EXPECT_EQ(
          refusal(*into, codes, [&](State& s) { s.tensors["layer1/exp_avg.scale"][1] = scale; }),
          concat("state['layer1']['exp_avg']: scale 1 is ", text, ", ", kScales));
    }
  }
  EXPECT_EQ(refusal(*coded, codes,
                    [](State& s) {
                      s.tensors["layer1/exp_avg_sq.scale"][1] = 0.0f;
                      std::ranges::fill(s.bytes["layer1/exp_avg_sq"], std::byte{0});
                      s.bytes["layer1/exp_avg_sq"][260] = std::byte{1};
                    }),
            "state['layer1']['exp_avg_sq']: code 260 is not 0, must be: the scale of its block is");
  EXPECT_EQ(
      refusal(*plain, floats, [](State& s) { s.scalars["layer1/step"] = (uint64_t{1} << 53) + 1; }),
      "state['layer1']['step']: is 9007199254740993, must be at most 2^53");
  EXPECT_EQ(refusal(*plain, floats, [](State& s) { s.scalars.erase("layer1/step"); }),
            "state['layer1']['step']: is missing, must be there");
  for (Optimizer* into : {coded.get(), plain.get()}) {
    EXPECT_EQ(refusal(*into, floats, [](State& s) { s.tensors.erase("layer1/exp_avg_sq"); }),
              "state['layer1']['exp_avg_sq']: is missing, must be there");
    EXPECT_EQ(refusal(*into, codes, [](State& s) { s.tensors.erase("layer1/exp_avg.scale"); }),
              "state['layer1']['exp_avg.scale']: is missing, must be there");
    EXPECT_EQ(refusal(*into, codes, [](State& s) { s.bytes["layer1/exp_avg"].pop_back(); }),
              "state['layer1']['exp_avg']: has 299 elements, must have 300");
    EXPECT_EQ(refusal(*into, floats, [](State& s) { s.tensors["layer1/exp_avg"].pop_back(); }),
              "state['layer1']['exp_avg']: has 299 elements, must have 300");
    EXPECT_EQ(
        refusal(*into, codes, [](State& s) { s.tensors["layer1/exp_avg.scale"].push_back(1.0f); }),
        "state['layer1']['exp_avg.scale']: has 3 elements, must have 2");
  }
  EXPECT_EQ(refusal(*coded, floats, [](State& s) { s.tensors["layer1/exp_avg"][7] = -HUGE_VALF; }),
            "state['layer1']['exp_avg']: element 7 is -inf, must be finite to become 8 bits");
  EXPECT_EQ(refusal(*coded, floats, [](State& s) { s.tensors["layer1/exp_avg_sq"][8] = -1.0f; }),
            "state['layer1']['exp_avg_sq']: element 8 is -1, must be finite and >= 0 to become 8 "
            "bits");
}

}  // namespace
}  // namespace gradwire
