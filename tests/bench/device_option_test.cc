#include "bench/trainer/device_option.h"

#include <gtest/gtest.h>

#include "bench/trainer/options.h"

namespace {

using trainer::BadArguments;
using trainer::Options;
using Arguments = std::vector<const char*>;

Options parse(const Arguments& more) {
  Arguments arguments = {"--data", "d", "--store", "file:s"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return trainer::parse_options(arguments);
}

std::string refused(const Arguments& arguments) {
  try {
    parse(arguments);
  } catch (const BadArguments& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DeviceOption, IsTheCpuWhenItIsLeftOut) {
  EXPECT_FALSE(parse({}).device.gpu);
  EXPECT_FALSE(parse({"--device", "cpu"}).device.gpu);
}

TEST(DeviceOption, NamesAGpuByItsNumberOrByTheRank) {
  EXPECT_EQ(trainer::parse_device("cuda").index, std::nullopt);
  EXPECT_TRUE(trainer::parse_device("cuda").gpu);
  EXPECT_EQ(trainer::parse_device("cuda:12").index, 12);
  for (const char* bad : {"gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999", ""}) {
    EXPECT_EQ(refused({"--device", bad}),
              std::string("--device: value is '") + bad + "', expected cpu, cuda or cuda:N");
  }
}

TEST(DeviceOption, WhatGpusDoNotCarryIsRefusedByName) {
  struct Row {
    Arguments arguments;
    std::string message;
  };
  for (const Row& row : std::vector<Row>{
           {{"--transport", "in_process"},
            "--transport is in_process with --device cuda:1, expected nccl"},
           {{"--transport", "gloo"}, "--transport is gloo with --device cuda:1, expected nccl"},
           {{"--method", "auto"}, "--method is auto with --device cuda:1, expected a method"},
           {{"--optimizer", "onebit-adam"}, "--optimizer is onebit-adam with --device cuda:1"},
           {{"--optimizer", "onebit-lamb"}, "--optimizer is onebit-lamb with --device cuda:1"},
           {{"--local-steps", "4"}, "--local-steps is 4 with --device cuda:1, expected 1"},
           {{"--exchange", "gtopk"},
            "--exchange is gtopk with --device cuda:1, expected auto, dense, gather, two_shot"},
           {{"--exchange", "hierarchical"}, "--exchange is hierarchical with --device cuda:1"},
           {{"--pace", "50mbit"}, "--pace is 5e+07 bit/s with --device cuda:1, expected none"}}) {
    Arguments arguments = {"--device", "cuda:1", "--transport", "nccl"};
    arguments.insert(arguments.end(), row.arguments.begin(), row.arguments.end());
    EXPECT_TRUE(refused(arguments).starts_with(row.message)) << refused(arguments);
  }
}

TEST(DeviceOption, NcclIsForGpus) {
  EXPECT_TRUE(refused({"--transport", "nccl"})
                  .starts_with("--transport is nccl with --device cpu, expected --device cuda"));
}

TEST(DeviceOption, WithoutAGpuTheReasonIsTold) {
  const std::string reason = gradwire::cuda::unavailable_reason();
  if (reason.empty()) {
    GTEST_SKIP() << "there is a GPU";
  }
  EXPECT_EQ(refused({"--device", "cuda", "--transport", "nccl"}),
            "--device is cuda, and there is no GPU: " + reason);
}

}  // namespace
