// The planner in other planners' cost models: never behind their own choices. These compare a cost
// model with itself: they show what is chosen, not how fast it is on a machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "tests/planner/baselines/espresso.h"
#include "tests/planner/baselines/secopa.h"

namespace gradwire::planner::testing {
namespace {

// ---- SeCoPa ----

/// VGG19 as its paper has it (Simonyan and Zisserman, arXiv:1409.1556): sixteen convolutions of 3 x
/// 3 and three dense layers, weights and biases.
std::vector<size_t> vgg19() {
  std::vector<size_t> numels;
  size_t in = 3;
  for (const size_t out :
       {64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512}) {
    numels.push_back(in * out * 9);
    numels.push_back(out);
    in = out;
  }
  in = 512 * 7 * 7;
  for (const size_t out : {4096, 4096, 1000}) {
    numels.push_back(in * out);
    numels.push_back(out);
    in = out;
  }
  return numels;
}

/// Of the VGG19 plan that HiPress ships (mark14wu/hipress at aa1b594, src/SeCoPa): the tensors it
/// compresses, by place, and into how many parts. All others it leaves alone, in four parts. The
/// last bias stands there with 1,048,576 elements in the place of 1000.
struct Shipped {
  size_t tensor;
  int parts;
};
constexpr Shipped kShipped[] = {{16, 2}, {18, 4}, {20, 4}, {22, 4}, {24, 4}, {26, 4},
                                {28, 4}, {30, 4}, {32, 4}, {34, 4}, {36, 4}, {37, 1}};

int agreeing(int nodes) {
  std::vector<size_t> numels = vgg19();
  numels.back() = 1'048'576;
  int same = 0;
  for (size_t t = 0; t < numels.size(); ++t) {
    const auto* const shipped = std::ranges::find(kShipped, t, &Shipped::tensor);
    const bool compress = shipped != std::end(kShipped);
    const SeCoPaChoice choice =
        secopa_choose(SeCoPaPattern::kServers, nodes, static_cast<double>(numels[t]));
    same += choice.compress == compress && choice.parts == (compress ? shipped->parts : 4) ? 1 : 0;
  }
  return same;
}

TEST(SeCoPa, ItsShippedPlanIsTheOneOfFourNodes) {
  ASSERT_EQ(vgg19().size(), 38u);
  EXPECT_EQ(agreeing(4), 38);
  EXPECT_EQ(agreeing(8), 1);
  EXPECT_EQ(agreeing(16), 0);
}

/// Buckets x compressed or not on one serial line: E[j] = min over i < j of max(E[i], ready(j)) +
/// cost(i..j).
double serial_optimum_s(const std::vector<ReadyGradient>& gradients, SeCoPaPattern pattern,
                        int nodes) {
  std::vector<double> end(gradients.size() + 1, std::numeric_limits<double>::infinity());
  end[0] = 0;
  for (size_t j = 1; j <= gradients.size(); ++j) {
    double numel = 0;
    for (size_t i = j; i-- > 0;) {
      numel += static_cast<double>(gradients[i].numel);
      const double cost = 1e-3 * secopa_choose(pattern, nodes, numel).ms;
      end[j] = std::min(end[j], std::max(end[i], gradients[j - 1].ready_s) + cost);
    }
  }
  return end.back();
}

TEST(SeCoPa, InItsModelThePlanIsTheExactOptimum) {
  struct Known {
    const char* model;
    SeCoPaPattern pattern;
    double ms;  ///< found offline, by another program
  };
  for (const Known& known :
       {Known{"bert", SeCoPaPattern::kRing, 79.7}, Known{"bert", SeCoPaPattern::kServers, 77.1},
        Known{"bert_large", SeCoPaPattern::kRing, 218.6},
        Known{"resnet50", SeCoPaPattern::kRing, 69.7}}) {
    const auto gradients = ready_gradients(read_tensor_gaps(known.model));
    const double optimum = serial_optimum_s(gradients, known.pattern, 16);
    const BucketPlan plan = plan_buckets(gradients, secopa_options(known.pattern, 16), {.beam = 0});
    EXPECT_NEAR(plan.end_s, optimum, 1e-12) << known.model;
    EXPECT_NEAR(1e3 * optimum, known.ms, 0.05) << known.model;
    EXPECT_TRUE(plan.exact) << known.model;
  }
}

// ---- Espresso ----

struct Published {
  EspressoCase of;
  size_t compressed;  ///< tensors of the released plan; 0: it could not be found again
  double shipped_ms;  ///< the end of its choice as shipped, found offline by another program
};

std::vector<Published> published() {
  return {{{.model = "bert", .compressor = "randomk", .nvlink = true}, 73, 86.3},
          {{.model = "gpt2", .compressor = "efsignsgd", .nvlink = true}, 50, 228.3},
          {{.model = "resnet101", .compressor = "dgc"}, 5, 243.6},
          {{.model = "LSTM", .compressor = "efsignsgd", .two_level = true}, 5, 95.3},
          {{.model = "vgg16", .compressor = "randomk", .two_level = true}, 9, 98.8},
          {{.model = "ugatit", .compressor = "dgc", .nvlink = true}, 0, 554.5}};
}

TEST(Espresso, AsShippedItCompressesWhatItsReleasedPlansDo) {
  for (const Published& plan : published()) {
    if (plan.compressed > 0) {
      const EspressoPrices prices(plan.of);
      EXPECT_EQ(run_espresso(read_tensor_gaps(plan.of.model), prices, true).compressed,
                plan.compressed)
          << plan.of.model;
    }
  }
}

TEST(Espresso, InItsModelThePlanIsNeverBehindItsChoiceNorFixedBuckets) {
  constexpr size_t k25MiB = 25 * 1024 * 1024 / 4;
  for (const Published& plan : published()) {
    const auto tensors = read_tensor_gaps(plan.of.model);
    const EspressoPrices prices(plan.of);
    const double shipped =
        espresso_end_us(tensors, prices, run_espresso(tensors, prices, true).options);
    EXPECT_NEAR(1e-3 * shipped, plan.shipped_ms, 0.06) << plan.of.model;
    const double repaired =
        espresso_end_us(tensors, prices, run_espresso(tensors, prices, false).options);
    const auto buckets = fused(tensors, k25MiB);
    const double fixed =
        espresso_end_us(buckets, prices, run_espresso(buckets, prices, false).options);
    const BucketPlan found = plan_buckets(ready_gradients(tensors), espresso_options(prices));
    const double ours = 1e6 * found.end_s;
    EXPECT_LE(ours, std::min(repaired, fixed) * (1 + 1e-12)) << plan.of.model;
    RecordProperty(plan.of.model, concat("shipped ", shipped, ", repaired ", repaired, ", fixed ",
                                         fixed, ", planned ", ours, " us"));
  }
}

}  // namespace
}  // namespace gradwire::planner::testing
