#include <gtest/gtest.h>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/plan.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

std::vector<ParamId> members(const PlanGroup& group) {
  std::vector<ParamId> ids;
  for (const Segment& segment : group.segments) {
    ids.push_back(segment.parameter);
  }
  return ids;
}

using Ids = std::vector<ParamId>;

PlanOptions options(const std::string& spec, size_t bucket_bytes) {
  PlanOptions made;
  made.spec = parse_spec(spec);
  made.bucket_bytes = bucket_bytes;
  return made;
}

TEST(Plan, FillsBucketsFromTheLastParameterWithoutExceedingTheirBytes) {
  const std::vector<ParamInfo> parameters{{"a", {100}}, {"b", {2, 50}}, {"c", {60}}, {"d", {40}}};
  const Plan plan = make_plan(parameters, options("none", 800));
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(members(plan.buckets[0].groups.at(0)), (Ids{3, 2, 1}));  // 40 + 60 + 100 floats
  EXPECT_EQ(members(plan.buckets[1].groups.at(0)), (Ids{0}));
  EXPECT_EQ(plan.buckets[0].numel, 200u);
  EXPECT_EQ(plan.places[3].offset, 0u);
  EXPECT_EQ(plan.places[2].offset, 40u);
  EXPECT_EQ(plan.places[1].offset, 100u);
  EXPECT_EQ(plan.places[0].bucket, 1u);
}

TEST(Plan, GivesAParameterLargerThanABucketABucketOfItsOwn) {
  const std::vector<ParamInfo> parameters{{"a", {10}}, {"huge", {1000}}, {"c", {10}}};
  const Plan plan = make_plan(parameters, options("none", 100));
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(members(plan.buckets[1].groups.at(0)), (Ids{1}));
}

TEST(Plan, KeepsTheBucketThatLeavesLastSmallWhereAsked) {
  const std::vector<ParamInfo> parameters{{"a", {10}}, {"b", {10}}, {"c", {60}}, {"d", {40}}};
  const auto last_of = [&](size_t last_bytes, size_t bucket_bytes = 800) {
    PlanOptions made = options("none", bucket_bytes);
    made.last_bucket_bytes = last_bytes;
    const Plan plan = make_plan(parameters, made);
    return std::pair(plan.buckets.size(), members(plan.buckets.back().groups.at(0)));
  };
  EXPECT_EQ(last_of(0), std::pair(size_t{1}, Ids{3, 2, 1, 0}));
  EXPECT_EQ(last_of(80), std::pair(size_t{2}, Ids{1, 0}));
  EXPECT_EQ(last_of(79), std::pair(size_t{2}, Ids{0}));
  EXPECT_EQ(last_of(1), std::pair(size_t{2}, Ids{0}));
  EXPECT_EQ(last_of(800), std::pair(size_t{1}, Ids{3, 2, 1, 0}));
  EXPECT_EQ(last_of(40, 400), std::pair(size_t{3}, Ids{0}));
}

TEST(Plan, TakesBucketsAsTheyAreGiven) {
  const std::vector<ParamInfo> parameters{{"a", {10}}, {"b", {20}}, {"c", {60}}};
  PlanOptions made = options("none", 4);
  made.buckets = {{1}, {0, 2}};
  const Plan plan = make_plan(parameters, made);
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(members(plan.buckets[0].groups.at(0)), (Ids{1}));
  EXPECT_EQ(members(plan.buckets[1].groups.at(0)), (Ids{0, 2}));
  EXPECT_EQ(plan.places[2].offset, 10u);
  const auto refused = [&](std::vector<std::vector<ParamId>> buckets) {
    made.buckets = std::move(buckets);
    return message_of<InvalidArgument>([&] { make_plan(parameters, made); });
  };
  EXPECT_EQ(refused({{0}, {1}}), "plan: parameter 2 is in no bucket, expected every parameter in one");
  EXPECT_EQ(refused({{0, 1}, {2, 0}}),
            "plan: parameter 0 is in two places of the buckets, expected one");
  EXPECT_EQ(refused({{0, 1, 2}, {}}), "plan: bucket 1 has 0 parameters, expected at least one");
  EXPECT_EQ(refused({{0, 1, 3}}), "plan: bucket 0 holds parameter 3, there are 3");
  made.exchanges = {"gather", "dense"};
  EXPECT_EQ(refused({{0, 1, 2}}),
            "plan: 2 exchanges for 1 buckets, expected one for each or none");
  made.buckets = {{2}, {1, 0}};
  EXPECT_EQ(make_plan(parameters, made).buckets[0].exchange, "gather");
  EXPECT_EQ(make_plan(parameters, made).buckets[1].exchange, "dense");
}

TEST(Plan, CountsBytesInTheGradientsDType) {
  const std::vector<ParamInfo> parameters{{"a", {100}}, {"b", {100}}};
  PlanOptions half = options("none", 400);
  half.dtype = DType::kFloat16;
  EXPECT_EQ(make_plan(parameters, half).buckets.size(), 1u);
  EXPECT_EQ(make_plan(parameters, options("none", 400)).buckets.size(), 2u);
}

TEST(Plan, PutsExemptParametersInABf16GroupInFrontOfTheOthers) {
  const Plan plan = make_plan(model(), options("int8", 1 << 20));
  ASSERT_EQ(plan.buckets.size(), 1u);
  const auto& groups = plan.buckets[0].groups;
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(to_string(groups[0].spec), "bf16");
  EXPECT_EQ(members(groups[0]), (Ids{7, 5, 3, 2}));  // biases and the scalar
  EXPECT_EQ(groups[0].numel, 10u + 200 + 1 + 33);
  EXPECT_EQ(to_string(groups[1].spec), "int8");
  EXPECT_EQ(members(groups[1]), (Ids{6, 4, 1, 0}));
  EXPECT_EQ(groups[1].offset, groups[0].numel);
  EXPECT_EQ(plan.places[6].offset, groups[0].numel);
  EXPECT_EQ(plan.places[3].offset, 210u);
}

TEST(Plan, ExemptsForSelectorsWithAnyValueCodecButNotForWideDenseSpecs) {
  for (const char* spec : {"topk:1%", "topk:1%,fp16", "topk:1%,int4", "int4"}) {
    EXPECT_EQ(make_plan(model(), options(spec, 1 << 20)).buckets[0].groups.size(), 2u) << spec;
  }
  for (const char* spec : {"none", "fp16", "bf16"}) {
    EXPECT_EQ(make_plan(model(), options(spec, 1 << 20)).buckets[0].groups.size(), 1u) << spec;
  }
  PlanOptions never = options("int4", 1 << 20);
  never.exempt_1d = PlanOptions::Exempt1D::kNever;
  EXPECT_EQ(make_plan(model(), never).buckets[0].groups.size(), 1u);
}

TEST(Plan, SendsExempt16BitGradientsAsTheyAre) {
  PlanOptions half = options("int8", 1 << 20);
  half.dtype = DType::kFloat16;
  EXPECT_EQ(to_string(make_plan(model(), half).buckets[0].groups[0].spec), "none");
}

TEST(Plan, AllowsABucketOfExemptParametersOnly) {
  const Plan plan =
      make_plan(std::vector<ParamInfo>{{"weight", {100, 10}}, {"bias", {10}}}, options("int8", 64));
  ASSERT_EQ(plan.buckets.size(), 2u);
  ASSERT_EQ(plan.buckets[0].groups.size(), 1u);
  EXPECT_EQ(to_string(plan.buckets[0].groups[0].spec), "bf16");
}

TEST(Plan, TilesEveryBucketWithItsParameters) {
  for (const char* spec : {"none", "int8", "topk:1%"}) {
    for (const size_t bytes : {64u, 1000u, 16384u, 1u << 20}) {
      const Plan plan = make_plan(model(), options(spec, bytes));
      std::vector<int> seen(model().size(), 0);
      for (size_t b = 0; b < plan.buckets.size(); ++b) {
        size_t end = 0;
        for (const PlanGroup& group : plan.buckets[b].groups) {
          EXPECT_EQ(group.offset, end);
          for (const Segment& segment : group.segments) {
            EXPECT_EQ(plan.places[segment.parameter].bucket, b);
            EXPECT_EQ(plan.places[segment.parameter].offset, end);
            EXPECT_EQ(segment.numel, model()[segment.parameter].numel());
            EXPECT_EQ(segment.offset_in_parameter, 0u);
            end += segment.numel;
            ++seen[segment.parameter];
          }
        }
        EXPECT_EQ(plan.buckets[b].numel, end);
      }
      EXPECT_EQ(seen, std::vector<int>(model().size(), 1)) << spec << " " << bytes;
    }
  }
}

TEST(Plan, ChoosesDenseForWideDenseSpecsAndGatherForTheOthers) {
  EXPECT_EQ(make_plan(model(), options("fp16", 4096)).buckets[0].exchange, "dense");
  EXPECT_EQ(make_plan(model(), options("int8", 4096)).buckets[0].exchange, "gather");
  EXPECT_EQ(default_exchange(parse_spec("none")), "dense");
  EXPECT_EQ(default_exchange(parse_spec("topk:1%")), "gather");
}

TEST(Plan, DescribesItselfInOneFactALine) {
  const std::vector<ParamInfo> parameters{{"w", {3, 4}}, {"b", {4}}};
  PlanOptions made = options("none", 1 << 20);
  made.seed = 9;
  EXPECT_EQ(make_plan(parameters, made).describe(),
            "plan: 2 parameters, 16 elements, float32, seed 9, 1 buckets\n"
            "bucket 0: dense, 16 elements, 64 bytes\n"
            "  group 0: none, 16 elements, capacity 96 bytes\n"
            "    parameter 1: b [4] at 0\n"
            "    parameter 0: w [3, 4] at 4\n"
            "kept on each rank: gradients 64 bytes, residuals (two buffers) 0 bytes of float32 and 0 "
            "bytes of bfloat16, estimates 0 bytes, "
            "in compressors 0 bytes\n");
}

// Two buckets with residuals: 12 elements in float32, and 4 and 3 in bfloat16.
TEST(Plan, SaysWhatResidualsInMemoryOfTheHostLeaveOnAGpu) {
  const std::vector<ParamInfo> parameters{{"w", {3, 4}}, {"v", {2, 2}}, {"u", {3, 1}}};
  PlanOptions made = options("int8", 32);
  made.rules = {{.spec = parse_spec("int4,residual=bf16"), .name = "u"},
                {.spec = parse_spec("int4,residual=bf16"), .name = "v"}};
  const Plan on_device = make_plan(parameters, made);
  made.residual_memory = ResidualMemory::kHost;
  const Plan on_host = make_plan(parameters, made);
  const auto kept = [](const Plan& plan) {
    return plan.describe().substr(plan.describe().find("kept on each rank"));
  };
  EXPECT_EQ(
      kept(on_device),
      "kept on each rank: gradients 76 bytes, residuals (two buffers) 96 bytes of float32 and "
      "28 bytes of bfloat16, estimates 0 bytes, in compressors 0 bytes\n");
  EXPECT_EQ(
      kept(on_host),
      "kept on each rank: gradients 76 bytes, residuals (two buffers in memory of the host) 96 "
      "bytes of float32 and 28 bytes of bfloat16, estimates 0 bytes, in compressors 0 bytes\n"
      "on a GPU, in place of residuals: at most 96 bytes to compress, and as many for each "
      "stream\n");
  EXPECT_EQ(on_host.fingerprint(), on_device.fingerprint());
}

TEST(Plan, SaysWhereAMeanIsNotTheRankOrderSum) {
  PlanOptions made = options("none", 1 << 20);
  const auto says_so = [&](const char* exchange) {
    made.exchange = exchange;
    return make_plan(model(), made).describe().find(
               concat("bucket 0: ", exchange,
                      " (the same bits on all ranks, not of the rank-order sum), ")) !=
           std::string::npos;
  };
  EXPECT_TRUE(says_so("ring"));
  EXPECT_TRUE(says_so("rabenseifner"));
  EXPECT_FALSE(says_so("sum"));
  EXPECT_FALSE(says_so("dense"));
}

TEST(Plan, FingerprintIsFnv1aOfTheDescription) {
  const Plan plan = make_plan(model(), options("int8", 4096));
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : plan.describe()) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  EXPECT_EQ(plan.fingerprint(), hash);
  EXPECT_NE(plan.fingerprint(), make_plan(model(), options("int4", 4096)).fingerprint());
}

std::string refusal(const std::vector<ParamInfo>& parameters, const PlanOptions& made) {
  return message_of<InvalidArgument>([&] { make_plan(parameters, made); });
}

TEST(Plan, RefusesBadRequestsInWords) {
  const PlanOptions none = options("none", 4096);
  EXPECT_EQ(refusal({}, none), "plan: 0 parameters, expected at least one");
  EXPECT_EQ(refusal({{"a", {1}}, {"a", {2}}}, none),
            "plan: two parameters are named 'a', expected different names");
  EXPECT_EQ(refusal({{"a", {3, 0}}}, none),
            "plan: parameter 'a' of shape [3, 0] has no elements, expected at least one");
  EXPECT_EQ(refusal({{"a", {1}}}, options("none", 0)), "plan: bucket_bytes is 0, must be positive");
  // 2^80 elements, which begin anew at 0 in 64 bits, and 2^31 + 2^16, which do not.
  EXPECT_EQ(refusal({{"a", {size_t{1} << 40, size_t{1} << 40}}}, none),
            "plan: parameter 'a' of shape [1099511627776, 1099511627776] has more than 2147483648 "
            "elements, expected at most so many");
  EXPECT_EQ(
      refusal({{"a", {(size_t{1} << 15) + 1, size_t{1} << 16}}}, none),
      "plan: parameter 'a' of shape [32769, 65536] has more than 2147483648 elements, expected "
      "at most so many");
  EXPECT_EQ(
      refusal({{"a", {size_t{1} << 40, size_t{1} << 40, 0}}}, none),
      "plan: parameter 'a' of shape [1099511627776, 1099511627776, 0] has no elements, expected "
      "at least one");
  PlanOptions bad = options("topk:1%", 4096);
  bad.exchange = "dense";
  EXPECT_EQ(refusal({{"a", {8, 8}}}, bad),
            "plan: exchange 'dense' cannot carry 'topk:1%', expected values of 16 bits or more of "
            "the same elements (none, fp16, bf16, randomk, powersgd)");
  // Its own spec first, although the bucket of exempt parameters leaves earlier.
  bad.exchange = "sum";
  bad.bucket_bytes = 64;
  const std::vector<ParamInfo> with_bias{{"weight", {8, 8}}, {"bias", {8}}};
  EXPECT_EQ(refusal(with_bias, bad),
            "plan: exchange 'sum' cannot carry 'topk:1%', expected a compressor whose float32 values "
            "add up (none, of float32 gradients, randomk and powersgd)");
  bad.exchange = "gtopk";
  bad.dtype = DType::kFloat16;
  EXPECT_EQ(refusal(with_bias, bad),
            "plan: exchange 'gtopk' cannot carry the 1-D parameters beside 'topk:1%' (the first is "
            "'bias'): lossy specs narrower than 16 bits exempt them, so that they travel as 'none' "
            "of float16; expected a compressor that selects, with error feedback, or a dense one "
            "with float32's range, or exempt_1d = never");
  bad.exempt_1d = PlanOptions::Exempt1D::kNever;
  EXPECT_EQ(make_plan(with_bias, bad).buckets.size(), 2u);
  bad = options("int8", 4096);
  bad.exchange = "ring";
  EXPECT_EQ(refusal({{"bias", {8}}}, bad),
            "plan: exchange 'ring' cannot carry the 1-D parameters beside 'int8' (the first is "
            "'bias'): lossy specs narrower than 16 bits exempt them, so that they travel as 'bf16' "
            "of float32; expected a compressor whose float32 values add up (none, of float32 "
            "gradients, randomk and powersgd), or exempt_1d = never");
  bad.exchange = "telepathy";
  EXPECT_TRUE(refusal({{"a", {8, 8}}}, bad)
                  .starts_with("exchange: unknown name 'telepathy', known: dense, gather"));
}

}  // namespace
}  // namespace gradwire::test
