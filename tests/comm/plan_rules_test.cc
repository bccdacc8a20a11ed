// Specs of single parameters: which rule decides, the groups it makes, and a Reducer over them.

#include <gtest/gtest.h>

#include "gradwire/comm/plan.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

SpecRule rule(const std::string& spec, const std::string& name = "*") {
  return {.spec = parse_spec(spec), .name = name};
}

PlanOptions options(const std::string& spec, std::vector<SpecRule> rules) {
  PlanOptions made;
  made.spec = parse_spec(spec);
  made.rules = std::move(rules);
  return made;
}

/// "spec: name name; spec: name", of all buckets.
std::string groups_of(const Plan& plan) {
  std::string text;
  for (const PlanBucket& bucket : plan.buckets) {
    for (const PlanGroup& group : bucket.groups) {
      text += concat(text.empty() ? "" : "; ", to_string(group.spec), ":");
      for (const Segment& segment : group.segments) {
        text += " " + plan.parameters[segment.parameter].name;
      }
    }
  }
  return text;
}

std::string groups_of(const PlanOptions& made) { return groups_of(make_plan(model(), made)); }

TEST(PlanRules, APatternIsOfTheWholeNameAndAStarOfAnyCharacters) {
  const auto fits = [](const std::string& pattern, const std::string& name) {
    return rule("none", pattern).fits({name, {2}});
  };
  for (const char* pattern : {"*", "a.b.c", "a*", "*c", "a*c", "*.b.*", "**", "a.*.c", "*a.b.c*",
                              "a**.b.c", "*b*c"}) {
    EXPECT_TRUE(fits(pattern, "a.b.c")) << pattern;
  }
  for (const char* pattern : {"a", "b", "a.b", "*b", "b*", "a.b.c.", "a*b", "*d*", "a.*.*.c", "c*a"}) {
    EXPECT_FALSE(fits(pattern, "a.b.c")) << pattern;
  }
  EXPECT_TRUE(fits("*ab", "aab"));  // the star takes one more when it took too little
  EXPECT_TRUE(fits("*aab*b", "aaabab"));
  EXPECT_FALSE(fits("*aab*c", "aaabab"));
}

TEST(PlanRules, TheFirstRuleThatFitsDecides) {
  EXPECT_EQ(groups_of(options("int8", {rule("topk:1%", "one.*"), rule("none", "*.weight")})),
            "bf16: three.bias two.bias temperature; topk:1%: one.bias one.weight; "
            "none: three.weight two.weight embed.weight");
  EXPECT_EQ(groups_of(options("int8", {rule("none", "*.weight"), rule("topk:1%", "one.*")})),
            "bf16: three.bias two.bias temperature; none: three.weight two.weight one.weight "
            "embed.weight; topk:1%: one.bias");
}

TEST(PlanRules, DimensionsAndElementsDecideToo) {
  SpecRule matrices = rule("topk:1%"), scalars = rule("none"), large = rule("int4"),
           small = rule("fp16");
  matrices.least_ndim = 2;
  scalars.most_ndim = 0;
  large.least_numel = 8000;
  small.most_numel = 33;
  EXPECT_EQ(groups_of(options("bf16", {scalars, small, large, matrices})),
            "bf16: two.bias; none: temperature; fp16: three.bias one.bias; "
            "int4: three.weight; topk:1%: two.weight one.weight embed.weight");
  large.name = "two.*";
  EXPECT_EQ(groups_of(options("bf16", {large})),
            "bf16: three.bias three.weight two.bias two.weight temperature one.bias one.weight "
            "embed.weight")
      << "a rule is all that it says";
}

TEST(PlanRules, ParametersOfOneSpecAreOneGroup) {
  EXPECT_EQ(groups_of(options("int8", {rule("int8", "*.bias"), rule("bf16", "embed*")})),
            "bf16: temperature embed.weight; int8: three.bias three.weight two.bias two.weight "
            "one.bias one.weight");
}

TEST(PlanRules, OneDimensionalParametersThatNoRuleFitsStayExempt) {
  PlanOptions made = options("int8", {rule("int4", "*.weight")});
  EXPECT_EQ(groups_of(made), "bf16: three.bias two.bias temperature one.bias; int4: three.weight "
                             "two.weight one.weight embed.weight");
  made.exempt_1d = PlanOptions::Exempt1D::kNever;
  EXPECT_EQ(groups_of(made), "int4: three.weight two.weight one.weight embed.weight; int8: "
                             "three.bias two.bias temperature one.bias");
}

TEST(PlanRules, ABucketTakesAnExchangeThatCarriesAllItsGroups) {
  PlanOptions made = options("none", {rule("topk:1%", "embed*")});
  made.bucket_bytes = 16384;
  const Plan plan = make_plan(model(), made);
  for (const PlanBucket& bucket : plan.buckets) {
    const bool has_embedding = &bucket == &plan.buckets[plan.places[0].bucket];
    EXPECT_EQ(bucket.exchange, has_embedding ? "gather" : "dense");
  }
  EXPECT_EQ(make_plan(model(), options("topk:1%", {rule("none", "embed*")})).buckets[0].exchange,
            "gather");
}

std::string refusal(const PlanOptions& made) {
  return message_of<InvalidArgument>([&] { make_plan(model(), made); });
}

TEST(PlanRules, WhatCannotBeIsSaid) {
  PlanOptions made = options("none", {rule("fp16", "one*"), rule("topk:1%", "embed*")});
  made.exchange = "dense";
  EXPECT_EQ(refusal(made),
            "plan: exchange 'dense' cannot carry 'topk:1%', which rule 1 gives to 'embed.weight', "
            "expected values of 16 bits or more of the same elements (none, fp16, bf16, randomk, "
            "powersgd)");
  SpecRule none = rule("fp16");
  none.least_ndim = 3;
  none.most_ndim = 2;
  EXPECT_EQ(refusal(options("none", {rule("fp16"), none})),
            "plan: least_ndim of rule 1 is 3, must be at most most_ndim, 2");
  none = rule("fp16");
  none.least_numel = 9;
  none.most_numel = 8;
  EXPECT_EQ(refusal(options("none", {none})),
            "plan: least_numel of rule 0 is 9, must be at most most_numel, 8");
  EXPECT_EQ(refusal(options("none", {rule("fp16", "")})),
            "plan: the name of rule 0 is empty, expected a pattern");
  CompressorSpec bad;
  bad.choice.density = 0.5;
  EXPECT_EQ(refusal(options("none", {{.spec = bad}})),
            "none: density is 0.5, must be 1: only selectors take one");
}

TEST(PlanRules, WhatARankKeepsIsSaid) {
  // Elements: 10 + 200 + 1 + 33 exempt, 2000 of the embedding, 16712 others.
  const Plan plan = make_plan(model(), options("topk:1%", {rule("dgc:1%", "embed*")}));
  EXPECT_TRUE(
      contains(plan.describe(),
               "\nkept on each rank: gradients 75824 bytes, residuals (two buffers) 149696 "
               "bytes of float32 and 0 bytes of bfloat16, estimates 0 bytes, in compressors "
               "16000 bytes\n"))
      << plan.describe();
  const std::string ef21 = make_plan(model(), options("int8", {rule("topk:1%,ef21", "one*")})).describe();
  EXPECT_TRUE(contains(ef21, ", estimates 17160 bytes, ")) << ef21;  // 2112 + 33 elements
}

// Nothing is lost whatever the groups of a bucket are, in the exchange that they share.
TEST(PlanRules, GroupsOfSeveralSpecsShareABucket) {
  constexpr int kSteps = 12, kRanks = 3;
  for (const char* exchange : {"auto", "two_shot"}) {
    SCOPED_TRACE(exchange);
    PlanOptions made = options("int4", {rule("topk:5%", "embed*"), rule("int8,stochastic", "*two*"),
                                        rule("none", "temperature"), rule("fp16,ef", "one*")});
    made.bucket_bytes = 32768;
    made.exchange = exchange;
    made.exempt_1d = PlanOptions::Exempt1D::kNever;
    std::vector<std::vector<double>> balance(kRanks);  // of each rank: given - sent - left
    const auto ends = run_ranks(kRanks, [&](Transport& transport) {
      Reducer reducer(make_plan(model(), made), transport);
      std::vector<double>& mine = balance[static_cast<size_t>(transport.rank())];
      mine.resize(18956);
      const auto add = [&](const Values& values, double weight) {
        size_t at = 0;
        for (size_t p = 0; p < values.size(); at += model()[p++].numel()) {
          for (size_t i = 0; i < values[p].size(); ++i) {
            mine[at + i] += weight * double{values[p][i]};
          }
        }
      };
      for (int step = 0; step < kSteps; ++step) {
        const Values given = gradients(transport.rank(), step);
        add(given, 1.0 / kRanks);
        hand_over(reducer, given);
        reducer.wait();
        add(means(reducer), -1.0 / kRanks);
      }
      add(residuals(reducer), -1.0 / kRanks);
    });
    EXPECT_EQ(first_message(ends), "");
    for (size_t i = 0; i < balance[0].size(); ++i) {
      ASSERT_NEAR(balance[0][i] + balance[1][i] + balance[2][i], 0, 5e-5) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace gradwire::test
