#include "bench/trainer/plan_pieces.h"

#include <gtest/gtest.h>

#include "gradwire/kernels/core/error.h"
#include "tests/bench/idx_files.h"

namespace {

using gradwire::ParamInfo;
using gradwire::Plan;
using gradwire::PlanOptions;

const std::vector<ParamInfo> kParameters = {
    {"a.weight", {64, 64}}, {"a.bias", {64}}, {"b.weight", {8, 64}}, {"b.bias", {8}}};

// Buckets that no size would make, in an order of their own, each with its exchange.
Plan made(uint64_t seed) {
  PlanOptions options{.spec = gradwire::parse_spec("topk:5%,int4"),
                      .rules = {{.spec = gradwire::parse_spec("int8"), .name = "b.*"}},
                      .buckets = {{3, 0, 2}, {1}},
                      .exchanges = {"gather", "two_shot"},
                      .seed = seed};
  return gradwire::make_plan(kParameters, options);
}

TEST(PlanPieces, AreThePlanAgain) {
  const idx_files::Folder folder;
  trainer::StateWriter writer;
  trainer::add_plan(made(7), writer);
  writer.write(folder.file("plan"));
  trainer::StateReader reader(folder.file("plan"));
  const auto found = trainer::read_plan(kParameters, {.seed = 7}, reader);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->describe(), made(7).describe());
  EXPECT_EQ(found->buckets.size(), 2u);
  EXPECT_EQ(found->buckets[0].exchange, "gather");
}

TEST(PlanPieces, AreNothingWhereThereAreNoneAndMissedWhereOneIsGone) {
  const idx_files::Folder folder;
  trainer::StateWriter empty, half;
  empty.number("", "steps", 3);
  empty.write(folder.file("empty"));
  trainer::StateReader nothing(folder.file("empty"));
  EXPECT_FALSE(trainer::read_plan(kParameters, {}, nothing).has_value());
  half.number("a.weight", "bucket", 0);
  half.number("a.weight", "place", 0);
  half.write(folder.file("half"));
  trainer::StateReader reader(folder.file("half"));
  try {
    trainer::read_plan(kParameters, {}, reader);
    FAIL() << "accepted";
  } catch (const gradwire::InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("exchange"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("is missing, must be there"), std::string::npos)
        << error.what();
  }
}

}  // namespace
