// Specs that were written for another place.

#include <gtest/gtest.h>

#include <string>

#include "gradwire/kernels/compress/compressor.h"

namespace gradwire {
namespace {

std::string refusal(std::string_view text) {
  try {
    parse_spec(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SpecText, SaysThatCommasJoinItsParts) {
  const std::string tail = "': '+' stands for it in --methods alone";
  EXPECT_EQ(refusal("topk:1%+int4"),
            "spec: is 'topk:1%+int4', must be joined by ',', as 'topk:1%,int4" + tail);
  EXPECT_EQ(refusal("int8+stochastic"),
            "spec: is 'int8+stochastic', must be joined by ',', as 'int8,stochastic" + tail);
  EXPECT_EQ(parse_spec("dgc:1%,clip=1e+2").clip, 100.0);
}

}  // namespace
}  // namespace gradwire
