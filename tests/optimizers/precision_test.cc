// Parameters and gradients of 16 bits: every row steps them as it steps the float32 numbers they
// are.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "gradwire/optimizers/step.h"
#include "tests/optimizers/model.h"

namespace gradwire {
namespace {

struct Precision {
  std::string spec;
  DType value, gradient;
  MasterWeights master;
};

void PrintTo(const Precision& p, std::ostream* out) {
  *out << p.spec << ", values " << to_string(p.value) << ", gradients " << to_string(p.gradient);
}

std::vector<Precision> all_precisions() {
  std::vector<Precision> all;
  std::vector<std::string> specs{"sgd:momentum=0", "sgd:nesterov=1", "lars:decayed_norm=1",
                                 "lamb:preset=apex", "lamb:state=8bit,min_8bit_size=7"};
  for (const OptimizerRow& row : optimizer_registry()) {
    if (row.exchanges != Exchanged::kMoves) {  // takes float32 alone
      specs.emplace_back(row.name);
    }
  }
  for (const std::string& spec : specs) {
    for (DType value : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (DType gradient : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        for (MasterWeights master : {MasterWeights::kRemainder, MasterWeights::kFloat32}) {
          if (value == DType::kBFloat16 || master == MasterWeights::kRemainder) {
            all.push_back({spec, value, gradient, master});
          }
        }
      }
    }
  }
  return all;
}

/// An element of 16 bits, or of 32, as its bits.
uint32_t bits_of(DType dtype, float x) {
  return dispatch(dtype, [&]<class T>() -> uint32_t {
    if constexpr (std::is_same_v<T, float>) {
      return std::bit_cast<uint32_t>(x);
    } else {
      return from_float<T>(x).bits;
    }
  });
}

/// A model's numbers in other types, rounded; the model then holds what they are.
struct Narrow {
  Narrow(Model& model, DType value_type, DType gradient_type)
      : source(model), value_dtype(value_type), gradient_dtype(gradient_type) {
    for (size_t i = 0; i < model.values.size(); ++i) {
      values.emplace_back(model.values[i].size() * size_of(value_dtype));
      gradients.emplace_back(model.gradients[i].size() * size_of(gradient_dtype));
      round_both(model.values[i], view(values[i], value_dtype));
    }
    take_gradients();
  }

  /// Rounds `from` to the view's type, and `from` with it.
  static void round_both(std::vector<float>& from, const TensorView& to) {
    dispatch(to.dtype, [&]<class T>() {
      for (size_t i = 0; i < from.size(); ++i) {
        to.as<T>()[i] = from_float<T>(from[i]);
        from[i] = to_float(to.as<T>()[i]);
      }
    });
  }

  void take_gradients() {
    for (size_t i = 0; i < gradients.size(); ++i) {
      round_both(source.gradients[i], view(gradients[i], gradient_dtype));
    }
  }

  static TensorView view(Buffer& buffer, DType dtype) {
    return {buffer.data(), buffer.size_bytes() / size_of(dtype), dtype, {}};
  }

  std::vector<Parameter> parameters(size_t group_count) {
    std::vector<Parameter> result = source.parameters(group_count);
    for (size_t i = 0; i < result.size(); ++i) {
      result[i].value = view(values[i], value_dtype);
      result[i].gradient = view(gradients[i], gradient_dtype);
    }
    return result;
  }

  Model& source;
  DType value_dtype, gradient_dtype;
  std::vector<Buffer> values, gradients;
};

/// All state as bytes by "parameter/name".
std::map<std::string, std::vector<std::byte>> bytes_of_state(Optimizer& optimizer) {
  struct Reader : StateVisitor {
    void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
      const auto* data = static_cast<const std::byte*>(value.data);
      state[std::string(parameter) + "/" + std::string(name)].assign(data,
                                                                     data + value.size_bytes());
    }
    void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> value,
               Device) override {
      state[concat(parameter, "/", name)].assign(value.begin(), value.end());
    }
    void scalar(std::string_view, std::string_view, uint64_t&) override {}
    std::map<std::string, std::vector<std::byte>> state;
  } reader;
  optimizer.visit_state(reader);
  return reader.state;
}

/// The masters of a narrow model's parameter, by what its checkpoint would hold.
std::vector<float> master_of(Narrow& model, Optimizer& optimizer, size_t place) {
  const TensorView value = Narrow::view(model.values[place], model.value_dtype);
  std::vector<float> master(value.numel);
  if (value.dtype == DType::kFloat32) {
    std::copy_n(value.as<float>().data(), value.numel, master.data());
    return master;
  }
  const auto state = bytes_of_state(optimizer);
  const std::string name = "layer" + std::to_string(place);
  if (const auto found = state.find(name + "/master"); found != state.end()) {
    std::memcpy(master.data(), found->second.data(), found->second.size());
    return master;
  }
  const std::vector<std::byte>& lower = state.at(name + "/remainder");
  for (size_t i = 0; i < master.size(); ++i) {
    uint16_t low = 0;
    std::memcpy(&low, lower.data() + 2 * i, 2);
    // The upper half is one too large where the lower half's first bit is set.
    const uint32_t high = value.as<bfloat16>()[i].bits - (low >= 0x8000u ? 1u : 0u);
    master[i] = std::bit_cast<float>((high << 16) | low);
  }
  return master;
}

class OptimizerPrecision : public testing::TestWithParam<Precision> {
 protected:
  std::unique_ptr<Optimizer> make(std::vector<Parameter> parameters) const {
    OptimizerSpec spec = parse_optimizer(GetParam().spec);
    spec.master = GetParam().master;
    return make_optimizer(spec, std::move(parameters), model_groups());
  }
};

INSTANTIATE_TEST_SUITE_P(
    Registry, OptimizerPrecision, testing::ValuesIn(all_precisions()), [](const auto& row) {
      std::string name = concat(row.param.spec, " ", to_string(row.param.value), " ",
                                to_string(row.param.gradient), " ",
                                row.param.master == MasterWeights::kFloat32 ? "master" : "default");
      std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST_P(OptimizerPrecision, MastersHaveTheBitsOfFloat32Parameters) {
  Model model;
  Narrow narrow(model, GetParam().value, GetParam().gradient);
  const auto floats = make(model.parameters(3));
  const auto halves = make(narrow.parameters(3));
  for (unsigned t = 0; t < 4; ++t) {
    model.fill_gradients(t);
    narrow.take_gradients();
    step(*floats, 0.1, 2);
    step(*halves, 0.1, 2);
  }
  for (size_t i = 0; i < model.values.size(); ++i) {
    SCOPED_TRACE("layer" + std::to_string(i));
    EXPECT_TRUE(same_bits(master_of(narrow, *halves, i), model.values[i]));
    const TensorView value = Narrow::view(narrow.values[i], narrow.value_dtype);
    dispatch(value.dtype, [&]<class T>() {
      const bool nearest_even =
          GetParam().master == MasterWeights::kFloat32 || GetParam().value == DType::kFloat16;
      for (size_t k = 0; k < value.numel; ++k) {
        const float exact = model.values[i][k], rounded = to_float(value.as<T>()[k]);
        if (nearest_even) {
          ASSERT_EQ(bits_of(value.dtype, rounded), bits_of(value.dtype, exact)) << k;
        } else {  // no neighbour is nearer
          const float other = to_float(from_float<T>(exact));
          ASSERT_LE(std::fabs(rounded - exact), std::fabs(other - exact)) << k;
        }
      }
    });
  }
}

TEST_P(OptimizerPrecision, ANonFiniteGradientChangesNothing) {
  Model model;
  Narrow narrow(model, GetParam().value, GetParam().gradient);
  const auto optimizer = make(narrow.parameters(3));
  step(*optimizer, 0.1);
  const auto state = bytes_of_state(*optimizer);
  std::vector<std::vector<std::byte>> values;
  for (const Buffer& value : narrow.values) {
    values.emplace_back(value.bytes().begin(), value.bytes().end());
  }
  for (const size_t element : {size_t{0}, size_t{1023}, size_t{17000}, size_t{100002}}) {
    const TensorView gradient = Narrow::view(narrow.gradients[5], narrow.gradient_dtype);
    dispatch(gradient.dtype, [&]<class T>() {
      const T good = std::exchange(gradient.as<T>()[element], from_float<T>(std::nanf("")));
      const std::string message = message_of<NonFiniteGradient>([&] { step(*optimizer, 0.1, 2); });
      EXPECT_EQ(message, "gradient of parameter 'layer5': element " + std::to_string(element) +
                             " is nan, expected finite values");
      gradient.as<T>()[element] = good;
    });
  }
  EXPECT_EQ(bytes_of_state(*optimizer), state);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::memcmp(values[i].data(), narrow.values[i].data(), values[i].size()), 0) << i;
  }
}

TEST_P(OptimizerPrecision, ValuesThatOthersWriteBecomeTheMasters) {
  Model model, later;
  Narrow narrow(model, GetParam().value, GetParam().gradient);
  const auto optimizer = make(narrow.parameters(3));
  const auto overwrite = [&] {  // as a checkpoint or a broadcast would
    for (size_t i = 0; i < narrow.values.size(); ++i) {
      std::reverse(later.values[i].begin(), later.values[i].end());
      Narrow::round_both(later.values[i], Narrow::view(narrow.values[i], narrow.value_dtype));
    }
  };
  overwrite();  // before the first step nobody has to say so
  step(*optimizer, 0.0);
  for (size_t i = 0; i < narrow.values.size(); ++i) {
    EXPECT_TRUE(same_bits(master_of(narrow, *optimizer, i), later.values[i])) << i;
  }
  step(*optimizer, 0.1);
  overwrite();
  const auto stream = make_inline_stream(1);
  Workspace workspace;
  Context context{*stream, workspace};
  optimizer->values_changed(context);
  stream->wait();
  for (size_t i = 0; i < narrow.values.size(); ++i) {
    EXPECT_TRUE(same_bits(master_of(narrow, *optimizer, i), later.values[i])) << i;
  }
}

/// Writes to every third element what its master does not round to, and to `model` the same.
void write_some(Model& model, Narrow& narrow) {
  for (size_t i = 0; i < model.values.size(); ++i) {
    const TensorView value = Narrow::view(narrow.values[i], narrow.value_dtype);
    dispatch(value.dtype, [&]<class T>() {
      for (size_t k = 0; k < value.numel; k += 3) {
        const float there = to_float(value.as<T>()[k]);
        const float written = k % 2 == 0 && there != 0.0f ? 0.0f : there + 1.0f;
        value.as<T>()[k] = from_float<T>(written);
        model.values[i][k] = to_float(value.as<T>()[k]);
      }
    });
  }
}

TEST_P(OptimizerPrecision, WhatOthersWriteIsSteppedAsInFloat32Parameters) {
  if (GetParam().value == DType::kBFloat16 && GetParam().master == MasterWeights::kRemainder) {
    GTEST_SKIP() << "a lower half does not know what was written beside it";
  }
  Model model;
  Narrow narrow(model, GetParam().value, GetParam().gradient);
  const auto floats = make(model.parameters(3));
  const auto halves = make(narrow.parameters(3));
  for (unsigned t = 0; t < 4; ++t) {
    model.fill_gradients(t);
    narrow.take_gradients();
    if (t == 2) {
      write_some(model, narrow);
    }
    step(*floats, 0.1, 2);
    step(*halves, 0.1, 2);
  }
  for (size_t i = 0; i < model.values.size(); ++i) {
    EXPECT_TRUE(same_bits(master_of(narrow, *halves, i), model.values[i])) << i;
  }
}

TEST_P(OptimizerPrecision, WhatOthersWriteStaysWhereAStepDoesNotMoveIt) {
  OptimizerSpec spec = parse_optimizer(GetParam().spec);
  if (spec.name == "lars" && spec.rate_in_momentum.value()) {
    GTEST_SKIP() << "its momentum moves values at a rate of 0 as well";
  }
  Model model;
  Narrow narrow(model, GetParam().value, GetParam().gradient);
  const auto optimizer = make(narrow.parameters(3));
  for (unsigned t = 0; t < 3; ++t) {
    model.fill_gradients(t);
    narrow.take_gradients();
    step(*optimizer, 0.1);
  }
  write_some(model, narrow);
  std::vector<std::vector<float>> written;
  const auto read = [&] {
    std::vector<std::vector<float>> values;
    for (Buffer& buffer : narrow.values) {
      const TensorView value = Narrow::view(buffer, narrow.value_dtype);
      std::vector<float>& out = values.emplace_back();
      dispatch(value.dtype, [&]<class T>() {
        for (const T x : value.as<T>()) {
          out.push_back(to_float(x));
        }
      });
    }
    return values;
  };
  written = read();
  step(*optimizer, 0.0);
  EXPECT_EQ(read(), written);  // 0 is -0, and NaN is nothing
}

TEST(OptimizerHalves, OfAnyWrittenUpperHalfRoundToIt) {
  const std::vector<uint16_t> lower{0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  for (uint32_t high = 0; high < 0x10000u; ++high) {
    const std::vector<bfloat16> upper(lower.size(), bfloat16{static_cast<uint16_t>(high)});
    std::vector<float> joined(lower.size());
    std::vector<bfloat16> again(lower.size());
    std::vector<uint16_t> rest(lower.size());
    cpu::join_halves(upper, lower, joined);
    cpu::split_halves(joined, again, rest);
    for (size_t i = 0; i < lower.size(); ++i) {
      const float value = to_float(upper[i]);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(joined[i]) && std::isnan(to_float(again[i]))) << high;
      } else {
        ASSERT_FALSE(std::isnan(joined[i])) << high << " beside " << lower[i];
        ASSERT_EQ(uint32_t{again[i].bits}, high) << "beside " << lower[i];
      }
    }
  }
}

TEST(OptimizerHalves, AreTheFloatAgain) {
  std::mt19937 random(kModelSeed);
  std::vector<float> x;
  for (uint32_t high = 0; high < 0x10000u; ++high) {  // every upper half, at and beside ties
    for (uint32_t low :
         {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu, static_cast<uint32_t>(random() & 0xFFFFu)}) {
      x.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  std::vector<bfloat16> upper(x.size());
  std::vector<uint16_t> lower(x.size());
  std::vector<float> again(x.size());
  cpu::split_halves(x, upper, lower);
  cpu::join_halves(upper, lower, again);
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {  // rounding would make zeros and infinities of some
      ASSERT_TRUE(std::isnan(again[i]) && std::isnan(to_float(upper[i])));
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(again[i]), std::bit_cast<uint32_t>(x[i]));
    }
    if (std::isfinite(x[i]) && std::isfinite(to_float(upper[i]))) {
      const float even = to_float(to_bfloat16(x[i]));
      ASSERT_LE(std::fabs(double{to_float(upper[i])} - double{x[i]}),
                std::fabs(double{even} - double{x[i]}));
    }
  }
}

}  // namespace
}  // namespace gradwire
