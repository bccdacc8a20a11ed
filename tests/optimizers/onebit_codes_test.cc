// State of 8 bits of 1-bit Adam and 1-bit LAMB: every step against the papers' loop from what the
// codes are, codes against a table that is searched.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/optimizers/coded_state.h"
#include "tests/reference/onebit_optimizers.h"

namespace gradwire {
namespace {

using ::reference::OneBitLayer;
using ::reference::Vector;

constexpr size_t kNumel = 2500;  // the last block is short
constexpr int kFreeze = 20, kSteps = 60;

::reference::OneBitSettings settings_of(const OptimizerSpec& spec) {
  return {.learning_rate = 1e-3,
          .beta1 = spec.beta1,
          .beta2 = spec.beta2,
          .epsilon = spec.epsilon.value(),
          .weight_decay = spec.weight_decay.value(),
          .freeze_step = kFreeze,
          .bias_correction = spec.bias_correction,
          .variance_floor = spec.variance_floor.value(),
          .adapt = spec.name == "onebit-lamb"};
}

Vector doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

void expect_near(const std::vector<float>& actual, const Vector& expected, double bound) {
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], bound * std::max(1.0, std::fabs(expected[i]))) << i;
  }
}

TEST(OneBitCodes, OfEveryStepAreThoseOfATableThatIsSearched) {
  for (const char* text :
       {"onebit-adam:freeze_step=20,variance_floor=0,state=8bit,min_8bit_size=1",
        "onebit-lamb:freeze_step=20,variance_floor=0,weight_decay=0.01,state=8bit,"
        "min_8bit_size=2500"}) {
    SCOPED_TRACE(text);
    const OptimizerSpec spec = parse_optimizer(text);
    const bool lamb = spec.name == "onebit-lamb";
    Wide wide(kNumel, 1.0);
    const auto optimizer = make_optimizer(spec, wide.model.parameters());
    State state = read_state(*optimizer);
    OneBitLayer layer;
    Compared compared;
    for (int t = 1; t <= kSteps; ++t) {
      SCOPED_TRACE(t);
      wide.fill();
      layer.w = doubles(wide.model.values[0]);
      layer.m = decoded(state, "layer0/exp_avg", true);
      layer.v = decoded(state, "layer0/exp_avg_sq", false);
      // Of state it is what is not codes; without LAMB the loop's goes on by itself.
      layer.fresh = lamb && t > kFreeze ? doubles(state.tensors.at("layer0/exp_avg_sq_fresh"))
                                        : (layer.fresh.empty() ? layer.v : layer.fresh);
      const std::vector<std::byte> frozen = state.bytes.at("layer0/exp_avg_sq");
      ::reference::onebit(layer, {doubles(wide.model.gradients[0])}, t, settings_of(spec));
      step(*optimizer, 1e-3, 2);
      state = read_state(*optimizer);
      expect_near(wide.model.values[0], layer.w, 4e-6);
      const auto draw = static_cast<uint32_t>(t - 1);
      expect_codes(state, "layer0/exp_avg", true, layer.m, kHashOfLayer0, draw, compared);
      if (t <= kFreeze) {
        expect_codes(state, "layer0/exp_avg_sq", false, layer.v, kHashOfLayer0, draw, compared);
      } else {
        ASSERT_EQ(state.bytes.at("layer0/exp_avg_sq"), frozen) << "v stays";
      }
      if (lamb && t > kFreeze) {
        expect_near(state.tensors.at("layer0/exp_avg_sq_fresh"), layer.fresh, 1e-5);
        ASSERT_NEAR(state.tensors.at("layer0/factor")[0], layer.factor, 1e-4);
      } else if (lamb && t == kFreeze) {  // v' begins as what v is from here on
        expect_near(state.tensors.at("layer0/exp_avg_sq_fresh"),
                    decoded(state, "layer0/exp_avg_sq", false), 0.0);
      }
      ASSERT_FALSE(HasFatalFailure());
    }
    EXPECT_LT(compared.uncertain, compared.all / 1000);
    EXPECT_EQ(state.bytes.count("layer0/exp_avg_sq_fresh"), 0u);
  }
}

TEST(OneBitCodes, TheFloorIsKeptToACode) {
  Wide wide(kNumel, 3.0);
  const auto optimizer = make_optimizer(
      parse_optimizer("onebit-adam:freeze_step=2,variance_floor=0.5,state=8bit,min_8bit_size=1"),
      wide.model.parameters());
  for (int t = 0; t < 2; ++t) {
    wide.fill();
    step(*optimizer, 1e-3);
  }
  const Vector v = decoded(read_state(*optimizer), "layer0/exp_avg_sq", false);
  double mean = 0.0;
  for (const double x : v) {
    mean += x / static_cast<double>(v.size());
  }
  size_t zeros = 0;
  for (const double x : v) {
    zeros += x == 0.0 ? 1 : 0;
    // A code below is 1/8 less at the most, and the floor raised the mean itself.
    EXPECT_TRUE(x == 0.0 || x >= 0.25 * mean * 0.5) << x << " of " << mean;
  }
  EXPECT_GT(zeros, kNumel / 20);  // where there was no gradient
  EXPECT_LT(zeros, kNumel / 8);
}

TEST(OneBitCodes, TakeAQuarterOfTheMemory) {
  Model model({1 << 16});
  const auto bytes = [&](const char* text) {
    return make_optimizer(parse_optimizer(text), model.parameters())->state_bytes();
  };
  EXPECT_EQ(bytes("onebit-adam"), 8u << 16);
  EXPECT_EQ(bytes("onebit-adam:state=8bit"), (2u << 16) + 2 * 4 * 256);
  EXPECT_EQ(bytes("onebit-lamb"), 12u << 16);
  EXPECT_EQ(bytes("onebit-lamb:state=8bit"), (6u << 16) + 2 * 4 * 256);
}

}  // namespace
}  // namespace gradwire
