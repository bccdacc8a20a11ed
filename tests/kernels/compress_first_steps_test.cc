// What a spec with start= or warmup= is from step to step.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

std::string in_step(const char* text, uint64_t committed) {
  return to_string(spec_in_step(parse_spec(text), committed));
}

TEST(SpecInItsFirstSteps, IsDenseAndThenItself) {
  for (const char* text : {"topk:1%,int4", "powersgd:4", "int8,stochastic", "randomk:5%", "none",
                           "fp16", "dgc:0.1%", "qsgd:7"}) {
    SCOPED_TRACE(text);
    const std::string spec = concat(text, ",start=10"), narrow = concat(spec, ":bf16");
    EXPECT_EQ(in_step(spec.c_str(), 0), "none");
    EXPECT_EQ(in_step(spec.c_str(), 9), "none");
    EXPECT_EQ(in_step(spec.c_str(), 10), to_string(parse_spec(text)));
    EXPECT_EQ(in_step(spec.c_str(), uint64_t{1} << 40), to_string(parse_spec(text)));
    EXPECT_EQ(in_step(narrow.c_str(), 9), parse_spec(text).feedback.on ? "bf16,ef" : "bf16");
    EXPECT_EQ(to_string(lasting_spec(parse_spec(narrow))), to_string(parse_spec(text)));
  }
}

TEST(SpecInItsFirstSteps, KeepsWhatGoesOnBehindThem) {
  EXPECT_EQ(in_step("int8,momentum=0.9,start=2", 0), "none,ef,momentum=0.9");
  EXPECT_EQ(in_step("topk:1%,momentum=0.9,start=2", 0), "none");  // which clears all that is sent
  EXPECT_EQ(in_step("topk:1%,ef21,eta=0.5,start=2", 0), "none,ef21,eta=0.5");
  EXPECT_EQ(in_step("int4,decay=0.5,residual=bf16,start=2:bf16", 0),
            "bf16,ef,decay=0.5,residual=bf16");
  EXPECT_EQ(in_step("int4,noef,start=2:bf16", 0), "bf16");
}

TEST(SpecInItsFirstSteps, FallsInDensityBehindTheDenseOnes) {
  const char* const spec = "topk:1%,int4,warmup=3,start=10";
  const char* const densities[] = {"25%", "6.25%", "1.5625%", "1%"};
  for (uint64_t step = 10; step < 30; ++step) {
    const uint64_t stage = std::min<uint64_t>((step - 10) / 3, 3);
    EXPECT_EQ(in_step(spec, step), concat("topk:", densities[stage], ",int4")) << step;
  }
  EXPECT_EQ(in_step("topk:30%,warmup=3", 0), "topk:30%");  // more than the first stage's
  EXPECT_EQ(in_step("chunktopk:64/4096,warmup=1", 0), "chunktopk:1024/4096");
  EXPECT_EQ(in_step("chunktopk:64/4096,warmup=1", 1), "chunktopk:256/4096");
  EXPECT_EQ(in_step("dgc:1%,warmup=3", 0), "dgc:1%,warmup=3");  // whose compressor counts
  EXPECT_EQ(in_step("dgc:1%,warmup=3,start=2", 2), "dgc:25%");
}

TEST(SpecInItsFirstSteps, SaysWhereItChanges) {
  const auto changes = [](const char* text) {
    std::vector<uint64_t> steps;
    const CompressorSpec spec = parse_spec(text);
    for (uint64_t at = next_change(spec, 0); at != kNeverChanges; at = next_change(spec, at)) {
      EXPECT_NE(spec_in_step(spec, at), spec_in_step(spec, at - 1)) << text << " " << at;
      steps.push_back(at);
    }
    return steps;
  };
  EXPECT_EQ(changes("int8,start=10"), (std::vector<uint64_t>{10}));
  EXPECT_EQ(changes("topk:1%,start=10,warmup=3"), (std::vector<uint64_t>{10, 13, 16, 19}));
  EXPECT_EQ(changes("topk:1%,warmup=3"), (std::vector<uint64_t>{3, 6, 9}));
  EXPECT_EQ(changes("topk:1%"), std::vector<uint64_t>{});
  EXPECT_EQ(changes("dgc:1%,warmup=3"), std::vector<uint64_t>{});
}

TEST(SpecInItsFirstSteps, OneCompressorIsOfOneOfThem) {
  std::string message;
  try {
    make_compressor(parse_spec("topk:1%,start=5"), {.numel = 100});
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  EXPECT_EQ(message,
            "compressor: 'topk:1%,start=5' is 'none' in its first step and 'topk:1%' in the end, "
            "expected one of them: a Reducer goes from one to the other");
}

}  // namespace
}  // namespace gradwire
