// What memory_of() says before there is a Reducer is what the kernel says that Reducers take.

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "gradwire/comm/plan_memory.h"
#include "gradwire/comm/reducer.h"
#include "tests/kernels/process_memory.h"
#include "tests/support/ranks.h"

namespace gradwire::test {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

struct MemoryCase {
  std::string spec, exchange;
  int ranks = 2;
  size_t bucket_bytes = size_t{8} << 20;
  double least = 0.95;  ///< of what is said
};

/// 12 layers of 4 MiB each: 48 MiB of gradients.
Plan plan_of(const MemoryCase& c) {
  std::vector<ParamInfo> layers;
  for (size_t i = 0; i < 12; ++i) {
    layers.push_back({concat("layer", i), {1024, 1024}});
  }
  PlanOptions options;
  options.spec = parse_spec(c.spec);
  options.exchange = c.exchange;
  options.bucket_bytes = c.bucket_bytes;
  options.ranks_per_node = c.exchange == "hierarchical" ? 2 : 1;
  return make_plan(layers, options);
}

/// Every element another one, so that what selects has something to choose.
void write_gradient(std::span<float> to, int rank, int step) {
  uint32_t bits = static_cast<uint32_t>(rank + 1) * 7919u + static_cast<uint32_t>(step);
  for (float& value : to) {
    bits = bits * 1664525u + 1013904223u;
    value = static_cast<float>(bits >> 8) * 0x1p-24f - 0.5f;
  }
}

class PlanMemoryIs : public ::testing::TestWithParam<MemoryCase> {};

TEST_P(PlanMemoryIs, WhatRanksTake) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have memory beside the program's";
#endif
  const MemoryCase& c = GetParam();
  const Plan plan = plan_of(c);
  const PlanMemory said = memory_of(plan, c.ranks);
  const size_t before = testing::status_bytes("VmRSS");
  std::vector<size_t> taken(static_cast<size_t>(c.ranks));
  const auto ends = run_ranks(c.ranks, [&](Transport& transport) {
    Reducer reducer(plan, transport);
    for (int step = 0; step < 4; ++step) {
      for (size_t p = plan.parameters.size(); p-- > 0;) {
        const auto id = static_cast<ParamId>(p);
        write_gradient(reducer.gradient(id).as<float>(), transport.rank(), step);
        reducer.grad_ready(id);
      }
      reducer.wait();
      if (step == 2) {  // nobody leaves before all have looked
        taken[static_cast<size_t>(transport.rank())] = testing::status_bytes("VmRSS") - before;
      }
    }
  });
  ASSERT_EQ(first_message(ends), "");
  // MiB of a rank.
  const double took = static_cast<double>(*std::ranges::max_element(taken)) / c.ranks / kMiB;
  const double whole = static_cast<double>(said.gradients + said.residuals + said.narrow +
                                           said.estimates + said.compressors + said.scratch +
                                           said.payloads + said.messages) /
                       kMiB;
  // Beside it threads have stacks and scratch, and what selects has a copy of a bucket.
  EXPECT_LE(took, 1.05 * whole + 12);
  EXPECT_GE(took, c.least * whole);
}

INSTANTIATE_TEST_SUITE_P(
    , PlanMemoryIs,
    ::testing::Values(MemoryCase{"none", "dense"}, MemoryCase{"none", "gather"},
                      MemoryCase{"none", "ring"}, MemoryCase{"fp16", "dense"},
                      MemoryCase{"int8", "gather"}, MemoryCase{"int8", "two_shot"},
                      MemoryCase{"int8", "two_shot", 2, size_t{48} << 20},
                      MemoryCase{"int4,residual=bf16", "two_shot"},
                      MemoryCase{"int4,residual=bf16", "gather"},
                      MemoryCase{"int8,ef21", "gather"},
                      MemoryCase{"topk:10%,int4", "gather"}, MemoryCase{"topk:10%", "two_shot"},
                      MemoryCase{"topk:10%", "gtopk"}, MemoryCase{"dgc:1%", "gather"},
                      MemoryCase{"powersgd:8", "dense"},
                      MemoryCase{"powersgd:8,rounds=2", "dense"},
                      MemoryCase{"int8", "gather", 6},
                      // Ranks of a node write to their shares of the residuals alone.
                      MemoryCase{"int8", "hierarchical", 4, size_t{8} << 20, 0.75}),
    [](const auto& of) {
      std::string name = of.param.spec + "_" + of.param.exchange + "_" +
                         std::to_string(of.param.ranks) + "_" +
                         std::to_string(of.param.bucket_bytes >> 20);
      std::ranges::replace_if(
          name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
      return name;
    });

}  // namespace
}  // namespace gradwire::test
