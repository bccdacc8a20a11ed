// Parameters of which every rank holds a slice: the norms, and the decisions, are of the whole.

#include <cmath>
#include <limits>
#include <thread>

#include "gradwire/comm/rank_sum.h"
#include "gradwire/comm/transport/in_process.h"
#include "gradwire/kernels/compress/payload.h"
#include "tests/optimizers/laws.h"

namespace gradwire {
namespace {

constexpr int kRanks = 3;

/// Which elements of a parameter are rank r's: uneven, and none of a small one's on some ranks.
Region slice_of(size_t numel, int r) {
  const size_t ends[] = {0, numel / 5, numel / 5 * 3, numel};
  return {ends[r], ends[r + 1]};
}

/// The rank's slices of a model's values and gradients, as a model of its own.
Model slices_of(const Model& whole, int r) {
  Model model(std::vector<size_t>{});
  for (size_t p = 0; p < whole.values.size(); ++p) {
    const Region region = slice_of(whole.values[p].size(), r);
    const auto cut = [&](const std::vector<float>& from) {
      return std::vector<float>(from.begin() + static_cast<ptrdiff_t>(region.begin),
                                from.begin() + static_cast<ptrdiff_t>(region.end));
    };
    model.values.push_back(cut(whole.values[p]));
    model.gradients.push_back(cut(whole.gradients[p]));
  }
  return model;
}

/// body(rank, add_up) on every rank at once; what each threw, or nothing.
template <class Body>
std::vector<std::string> on_ranks(size_t most, const Body& body) {
  auto group = make_in_process_group(kRanks, {});
  std::vector<std::string> thrown(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      try {
        RankSum sum(*group[static_cast<size_t>(r)], most);
        const std::function<void(std::span<double>)> add_up = std::ref(sum);
        body(r, add_up);
      } catch (const std::exception& error) {
        thrown[static_cast<size_t>(r)] = error.what();
        group[static_cast<size_t>(r)]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return thrown;
}

using OptimizerSlices = OptimizerLaws;
INSTANTIATE_TEST_SUITE_P(Registry, OptimizerSlices, testing::ValuesIn(all_specs()), name_of_spec);

void step_slices(Optimizer& optimizer, const std::function<void(std::span<double>)>& add_up,
                 OnNonFinite on_non_finite = OnNonFinite::kError) {
  on_stream(1, [&](Context& context) {
    optimizer.apply(
        StepOptions{.learning_rate = 0.1, .on_non_finite = on_non_finite, .add_up = &add_up},
        context);
  });
}

// Sums of squares are added in another order, so that a ratio may differ in its last bit.
TEST_P(OptimizerSlices, StepAsTheWhole) {
  if (GetParam().state == StateBits::kEight) {
    GTEST_SKIP() << "a slice's scales and random rounding are its own";
  }
  Model whole;
  const auto of_whole = make(whole);
  std::vector<Model> slices;
  for (int r = 0; r < kRanks; ++r) {
    slices.push_back(slices_of(whole, r));
  }
  std::vector<Model> start = slices;
  std::vector<Model> given;
  for (unsigned t = 0; t < 3; ++t) {
    whole.fill_gradients(t);
    given.push_back(whole);
    apply(*of_whole, 0.1);
  }
  const auto thrown = on_ranks(2 * whole.values.size(), [&](int r, const auto& add_up) {
    Model& mine = slices[static_cast<size_t>(r)];
    const auto optimizer = make_optimizer(GetParam(), mine.parameters(3), model_groups());
    for (const Model& step : given) {
      const Model now = slices_of(step, r);
      for (size_t p = 0; p < mine.gradients.size(); ++p) {
        std::ranges::copy(now.gradients[p], mine.gradients[p].begin());
      }
      step_slices(*optimizer, add_up);
    }
  });
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(thrown[static_cast<size_t>(r)], "");
    const Model expected = slices_of(whole, r);
    for (size_t p = 0; p < expected.values.size(); ++p) {
      const std::vector<float>& found = slices[static_cast<size_t>(r)].values[p];
      const std::vector<float>& before = start[static_cast<size_t>(r)].values[p];
      ASSERT_EQ(found.size(), expected.values[p].size());
      for (size_t i = 0; i < found.size(); ++i) {
        const float wanted = expected.values[p][i];
        ASSERT_NEAR(found[i], wanted, 3e-6f * (std::abs(wanted) + std::abs(wanted - before[i])))
            << "rank " << r << ", parameter " << p << ", element " << i;
      }
    }
  }
}

// Ranks 1 and 2 have the same slices, of which rank 1 counts one half of the parameters, and rank 2
// the other.
TEST_P(OptimizerSlices, OfSeveralRanksCountOnce) {
  if (GetParam().state == StateBits::kEight) {
    GTEST_SKIP() << "a slice's scales and random rounding are its own";
  }
  const auto cut = [](const Model& from, int r) {
    Model model(std::vector<size_t>{});
    for (size_t p = 0; p < from.values.size(); ++p) {
      const auto half = static_cast<ptrdiff_t>(from.values[p].size() / 2);
      const auto part = [&](const std::vector<float>& all) {
        return r == 0 ? std::vector<float>(all.begin(), all.begin() + half)
                      : std::vector<float>(all.begin() + half, all.end());
      };
      model.values.push_back(part(from.values[p]));
      model.gradients.push_back(part(from.gradients[p]));
    }
    return model;
  };
  Model whole;
  const auto of_whole = make(whole);
  std::vector<Model> slices;
  for (int r = 0; r < kRanks; ++r) {
    slices.push_back(cut(whole, r));
  }
  std::vector<Model> given;
  for (unsigned t = 0; t < 3; ++t) {
    whole.fill_gradients(t);
    given.push_back(whole);
    apply(*of_whole, 0.1);
  }
  std::vector<std::string> said(kRanks);
  const auto thrown = on_ranks(2 * whole.values.size(), [&](int r, const auto& add_up) {
    Model& mine = slices[static_cast<size_t>(r)];
    std::vector<Parameter> parameters = mine.parameters(3);
    for (size_t p = 0; p < parameters.size(); ++p) {
      parameters[p].replica = r != 0 && static_cast<size_t>(r) % 2 != p % 2;
    }
    const auto optimizer = make_optimizer(GetParam(), std::move(parameters), model_groups());
    for (const Model& step : given) {
      const Model now = cut(step, r);
      for (size_t p = 0; p < mine.gradients.size(); ++p) {
        std::ranges::copy(now.gradients[p], mine.gradients[p].begin());
      }
      step_slices(*optimizer, add_up);
    }
    if (r == 1) {
      mine.gradients[4][0] = std::nanf("");  // of a slice that it does not count
    }
    said[static_cast<size_t>(r)] =
        message_of<NonFiniteGradient>([&] { step_slices(*optimizer, add_up); });
  });
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(thrown[static_cast<size_t>(r)], "");
    EXPECT_NE(said[static_cast<size_t>(r)], "");
    const Model expected = cut(whole, r);
    for (size_t p = 0; p < expected.values.size(); ++p) {
      for (size_t i = 0; i < expected.values[p].size(); ++i) {
        const float wanted = expected.values[p][i];
        ASSERT_NEAR(slices[static_cast<size_t>(r)].values[p][i], wanted,
                    1e-5f * (std::abs(wanted) + 1.0f))
            << "rank " << r << ", parameter " << p << ", element " << i;
      }
    }
  }
  EXPECT_TRUE(same_bits(slices[1].values, slices[2].values));
}

TEST_P(OptimizerSlices, LeaveTheStepOutEverywhereWhereOneIsNotFinite) {
  Model whole;
  whole.gradients[5][90000] = std::nanf("");  // rank 2's
  std::vector<Model> slices;
  for (int r = 0; r < kRanks; ++r) {
    slices.push_back(slices_of(whole, r));
  }
  const std::vector<Model> before = slices;
  std::vector<std::string> said(kRanks);
  std::vector<uint64_t> skipped(kRanks);
  const auto thrown = on_ranks(2 * whole.values.size(), [&](int r, const auto& add_up) {
    const auto at = static_cast<size_t>(r);
    const auto optimizer = make_optimizer(GetParam(), slices[at].parameters(3), model_groups());
    const State state = read_state(*optimizer);
    said[at] = message_of<NonFiniteGradient>([&] { step_slices(*optimizer, add_up); });
    step_slices(*optimizer, add_up, OnNonFinite::kSkip);
    on_stream(1, [&](Context& context) { skipped[at] = optimizer->skipped_steps(context); });
    check(same_bits(read_state(*optimizer), state), "state has changed");
  });
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(thrown[r], "");
    EXPECT_EQ(skipped[r], 1u);
    EXPECT_TRUE(same_bits(slices[r].values, before[r].values));
    EXPECT_NE(said[r].find(r == 2 ? "parameter 'layer5': element 30000 is nan"
                                  : "another rank's slice has an element that is not finite"),
              std::string::npos)
        << said[r];
  }
}

TEST(OptimizerOfSlices, ChangeNothingWhereTheExchangeFails) {
  Model model;
  const auto optimizer = make_optimizer(parse_optimizer("lamb"), model.parameters());
  const Model before = model;
  const State state = read_state(*optimizer);
  const std::function<void(std::span<double>)> fails = [](std::span<double>) {
    throw TransportError("the line is cut", 1);
  };
  EXPECT_EQ(message_of<TransportError>([&] { step_slices(*optimizer, fails); }), "the line is cut");
  EXPECT_TRUE(same_bits(model.values, before.values));
  EXPECT_TRUE(same_bits(read_state(*optimizer), state));
}

TEST(OptimizerOfSlices, AreNotThereForOneBit) {
  Model model;
  const auto optimizer = make_optimizer(parse_optimizer("onebit-adam"), model.parameters());
  const std::function<void(std::span<double>)> nothing = [](std::span<double>) {};
  EXPECT_NE(message_of<InvalidArgument>([&] {
              step_slices(*optimizer, nothing);
            }).find("add_up is given, expected whole parameters"),
            std::string::npos);
}

TEST(RankSums, HaveTheSameBitsInRankOrderOnEveryRank) {
  const double parts[kRanks][2] = {{1e16, 0.1}, {1.0, 0.2}, {-1e16, 0.3}};
  std::vector<std::array<double, 2>> sums(kRanks);
  const auto thrown = on_ranks(2, [&](int r, const auto& add_up) {
    std::array<double, 2> values{parts[r][0], parts[r][1]};
    add_up(values);
    sums[static_cast<size_t>(r)] = values;
  });
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(thrown[r], "");
    EXPECT_EQ(sums[r][0], (0.0 + 1e16 + 1.0) - 1e16);
    EXPECT_EQ(sums[r][1], 0.0 + 0.1 + 0.2 + 0.3);
  }
  const auto refused = on_ranks(2, [&](int, const auto& add_up) {
    std::array<double, 3> values{};
    add_up(values);
  });
  EXPECT_EQ(refused[0], "rank_sum: there are 3 values, expected at most 2");
}

TEST(RankSums, OfDifferentNumbersOfValuesAreAnError) {
  const auto thrown = on_ranks(4, [&](int r, const auto& add_up) {
    std::vector<double> values(static_cast<size_t>(r == 1 ? 3 : 4));
    add_up(values);
  });
  for (const std::string& words : thrown) {
    EXPECT_NE(words.find("norms of slices"), std::string::npos) << words;
  }
}

}  // namespace
}  // namespace gradwire
