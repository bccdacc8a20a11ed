// Specs that were written for another place, or misspelt.

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

TEST(SpecText, SaysThatCommasJoinWhatColonsSemicolonsAndSpacesDo) {
  for (const auto& [text, meant] : {std::pair{"topk:1%:int4", "topk:1%,int4"},
                                    {"topk:1%;int4;ef21", "topk:1%,int4,ef21"},
                                    {"topk:1% int4", "topk:1%,int4"},
                                    {"int8:ef", "int8,ef"},
                                    {"topk:1%,int4:stochastic", "topk:1%,int4,stochastic"},
                                    {"topk:1%:qsgd:7:start=3:bf16", "topk:1%,qsgd:7,start=3:bf16"},
                                    {"powersgd:4:rounds=2", "powersgd:4,rounds=2"}}) {
    EXPECT_EQ(refusal(text),
              concat("spec: is '", text, "', must be joined by ',', as '", meant, "'"));
    EXPECT_EQ(refusal(meant), "accepted");
  }
  EXPECT_EQ(refusal("topk:1%:int5"), "topk: density is '1%:int5', must be a number");
}

TEST(SpecText, SaysThatCommasJoinItsParts) {
  const std::string tail = "': '+' stands for it in --methods alone";
  EXPECT_EQ(refusal("topk:1%+int4"),
            "spec: is 'topk:1%+int4', must be joined by ',', as 'topk:1%,int4" + tail);
  EXPECT_EQ(refusal("int8+stochastic"),
            "spec: is 'int8+stochastic', must be joined by ',', as 'int8,stochastic" + tail);
  EXPECT_EQ(parse_spec("dgc:1%,clip=1e+2").feedback.clip, 100.0);
}

TEST(SpecText, IsAnsweredByWhatWasMeant) {
  EXPECT_TRUE(refusal("tpok:1%").starts_with(
      "compressor: unknown name 'tpok' (did you mean 'topk'?), known: none, fp16"));
  EXPECT_TRUE(refusal("TopK:1%").starts_with(
      "compressor: unknown name 'TopK' (did you mean 'topk'?), known: none"));
  for (const char* text : {"auto", "Auto", "auto,int8"}) {
    const std::string message = refusal(text);
    EXPECT_TRUE(message.ends_with("powersgd; or, where plans are chosen (register(), attach(), "
                                  "gradwire bench), 'auto', whose options follow a ':'"))
        << message;
  }
  // As near to int4 as to int8.
  EXPECT_TRUE(refusal("int3").starts_with("compressor: unknown name 'int3', known: none"));
  EXPECT_TRUE(refusal("int8,stochastc")
                  .starts_with("int8: unknown option 'stochastc' (did you mean 'stochastic'?), kn"));
  EXPECT_TRUE(refusal("int8,blok=128")
                  .starts_with("int8: unknown option 'blok=128' (did you mean 'block=N'?), known"));
  EXPECT_TRUE(refusal("int8,quick").starts_with("int8: unknown option 'quick', known: fp32"));
  EXPECT_TRUE(refusal("int8,quick").ends_with(", eta=H, clip=NORM, warmup=STEPS, start=STEPS"));
}

}  // namespace
}  // namespace gradwire
