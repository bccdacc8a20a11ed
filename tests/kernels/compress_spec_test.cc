#include <gtest/gtest.h>

#include "gradwire/kernels/compress/compressor.h"
#include "tests/kernels/compress_cases.h"

namespace gradwire::testing {
namespace {

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::string parse_error(std::string_view text) {
  return message_of([&] { parse_spec(text); });
}

TEST(Spec, ParsesWhatUsersWrite) {
  EXPECT_EQ(parse_spec("none"), CompressorSpec{});
  EXPECT_EQ(parse_spec("fp16"), (CompressorSpec{.name = "fp16", .codec = {.values = ValueCodec::kFloat16}}));
  EXPECT_EQ(parse_spec("topk:1%"), (CompressorSpec{.name = "topk",
                                                   .choice = {.density = 0.01},
                                                   .codec = {.values = ValueCodec::kFloat32},
                                                   .feedback = {.on = true}}));
  EXPECT_EQ(parse_spec("topk:0.25,int4,noef"),
            (CompressorSpec{.name = "topk",
                            .choice = {.density = 0.25},
                            .codec = {.values = ValueCodec::kInt4}}));
  EXPECT_EQ(parse_spec("int8,stochastic,block=64"),
            (CompressorSpec{.name = "int8",
                            .codec = {.values = ValueCodec::kInt8,
                                      .rounding = Rounding::kStochastic,
                                      .block = 64},
                            .feedback = {.on = true}}));
}

TEST(Spec, PrintsTheCanonicalText) {
  EXPECT_EQ(to_string(parse_spec("topk:0.01,fp32,ef")), "topk:1%");
  EXPECT_EQ(to_string(parse_spec("topk:0.1%,int4")), "topk:0.1%,int4");
  EXPECT_EQ(to_string(parse_spec("int8,nearest,block=256,ef")), "int8");
  EXPECT_EQ(to_string(parse_spec("int4,noef,block=32,stochastic")),
            "int4,stochastic,block=32,noef");
  EXPECT_EQ(to_string(parse_spec("bf16,ef")), "bf16,ef");
  EXPECT_EQ(to_string(parse_spec("e4m3,nearest,ef")), "e4m3");
  EXPECT_EQ(to_string(parse_spec("e5m2,block=32,stochastic")), "e5m2,stochastic,block=32");
  EXPECT_EQ(to_string(parse_spec("topk:1%,e4m3")), "topk:1%,e4m3");
  EXPECT_EQ(to_string(parse_spec("topk:1%,ternary")), "topk:1%,2bit,stochastic");
  EXPECT_EQ(parse_spec("topk:1%,2bit,stochastic"), parse_spec("topk:1%,ternary"));
  EXPECT_EQ(to_string(parse_spec("chunktopk:64/4096,2bit")), "chunktopk:64/4096,2bit");
  EXPECT_EQ(to_string(parse_spec("topk:1%,noef,natural")), "topk:1%,natural,noef");
  EXPECT_EQ(to_string(parse_spec("dgc:1%,qsgd:07,clip=2")), "dgc:1%,qsgd:7,clip=2");
  EXPECT_EQ(to_string(parse_spec("randomk:1%,stochastic,int4")), "randomk:41/4096,int4,stochastic");
  EXPECT_EQ(to_string(parse_spec("natural,noef,block=256")), "natural");
  EXPECT_EQ(to_string(parse_spec("qsgd:007,ef,block=512")), "qsgd:7,block=512,ef");
  EXPECT_EQ(to_string(parse_spec("2bit,stochastic,block=256,ef")), "2bit,stochastic");
  EXPECT_EQ(to_string(parse_spec("1bit,noef,block=64")), "1bit,block=64,noef");
  EXPECT_EQ(to_string(parse_spec("int8,decay=1")), "int8");
  EXPECT_EQ(to_string(parse_spec("topk:1%,ef21,int4")), "topk:1%,int4,ef21");
  EXPECT_EQ(to_string(parse_spec("fp16,ef21")), "fp16,ef21");
  EXPECT_EQ(to_string(parse_spec("topk:1%,decay=0.950,int4")), "topk:1%,int4,decay=0.95");
  EXPECT_EQ(to_string(parse_spec("dgc:0.1%,momentum=0.9,clip=0,warmup=0")), "dgc:0.1%");
  EXPECT_EQ(to_string(parse_spec("dgc:0.1%,warmup=100,clip=2.5,momentum=0,fp16")),
            "dgc:0.1%,fp16,momentum=0,clip=2.5,warmup=100");
  EXPECT_EQ(to_string(parse_spec("topk:1%,start=0010,warmup=3")), "topk:1%,warmup=3,start=10");
  EXPECT_EQ(to_string(parse_spec("powersgd:4,start=100:bf16")), "powersgd:4,start=100:bf16");
  EXPECT_EQ(to_string(parse_spec("int8,start=0")), "int8");
  EXPECT_EQ(to_string(parse_spec("blocktopk:1%,width=64,ef")), "blocktopk:1%");
  EXPECT_EQ(to_string(parse_spec("blocktopk:1%,noef,width=0100,int4")), "blocktopk:1%,int4,width=100,noef");
}

TEST(Spec, RoundTripsThroughText) {
  std::vector<std::string> specs = all_specs();
  for (const char* density : {"1", "0.3", "1e-5", "0.0123456789012345", "33.3%", "100%", "7%"}) {
    specs.push_back(std::string("topk:") + density);
  }
  for (const CompressorRow& row : compressor_registry()) {
    specs.push_back(concat(row.example, ",start=7"));
    specs.push_back(concat(row.example, ",start=7:bf16", row.selector() ? ",warmup=2" : ""));
  }
  for (const std::string& text : specs) {
    const CompressorSpec spec = parse_spec(text);
    EXPECT_EQ(parse_spec(to_string(spec)), spec) << text << " -> " << to_string(spec);
  }
  CompressorSpec odd = parse_spec("topk:1%");
  for (double density = 1e-7; density < 1; density *= 1.0712345) {
    odd.choice.density = density;
    EXPECT_EQ(parse_spec(to_string(odd)), odd) << to_string(odd);
  }
}

TEST(Spec, EveryErrorSaysWhatWasExpected) {
  std::string known;
  for (const CompressorRow& row : compressor_registry()) {
    known.append(known.empty() ? "" : ", ").append(row.name);
  }
  EXPECT_EQ(parse_error("foo"), "compressor: unknown name 'foo', known: " + known);
  EXPECT_EQ(parse_error("topk:2"), "topk: density is 2, must be in (0, 1]");
  EXPECT_EQ(parse_error("blocktopk:1%,width=0"), "blocktopk: width is 0, must be 1 to 4096");
  EXPECT_EQ(parse_error("blocktopk:1%,width=4097"), "blocktopk: width is 4097, must be 1 to 4096");
  EXPECT_EQ(parse_error("topk:1%,width=64"),
            "topk: option is 'width=64', but it does not send blocks; blocktopk does");
  EXPECT_EQ(parse_error("topk:0"), "topk: density is 0, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:-1%"), "topk: density is -0.01, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:nan"), "topk: density is nan, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:x%"), "topk: density is 'x', must be a number");
  EXPECT_EQ(parse_error("topk:"), "topk: density is '', must be a number");
  EXPECT_EQ(parse_error("topk"), "topk: density is missing, expected for example topk:1%");
  EXPECT_EQ(parse_error("chunktopk:0/4096"), "chunktopk: K of the density K/4096 is 0, must be 1 to 4096");
  EXPECT_EQ(parse_error("chunktopk:4097/4096"),
            "chunktopk: K of the density K/4096 is 4097, must be 1 to 4096");
  EXPECT_EQ(parse_error("chunktopk:1.5/4096"), "chunktopk: K of the density K/4096 is '1.5', must be a number");
  EXPECT_EQ(parse_error("chunktopk:64/1024"), "chunktopk: density is '64/1024', must be a number");
  EXPECT_EQ(parse_error("int8:1%"), "int8: density is '1%', but only selectors take one");
  EXPECT_EQ(parse_error("qsgd"), "qsgd: number of levels is missing, expected for example qsgd:7");
  EXPECT_EQ(parse_error("qsgd:0"), "qsgd: number of levels is 0, must be 1 to 127");
  EXPECT_EQ(parse_error("qsgd:128"), "qsgd: number of levels is 128, must be 1 to 127");
  EXPECT_EQ(parse_error("qsgd:1%"), "qsgd: number of levels is '1%', must be a number");
  EXPECT_EQ(parse_error("ternary,stochastic"),
            "ternary: option is 'stochastic', but it has one way to round; int8, int4, 2bit, e4m3 and "
            "e5m2 have two");
  EXPECT_EQ(parse_error("int8,fp16"),
            "int8: option is 'fp16', but its values have one fixed type; only selectors take a "
            "value codec");
  EXPECT_EQ(parse_error("topk:1%,stochastic"),
            "topk: rounding is stochastic, must be nearest with values of fp32; those of int8, int4, "
            "2bit, e4m3 and e5m2 have both");
  EXPECT_EQ(parse_error("chunktopk:1%,1bit,stochastic"),
            "chunktopk: rounding is stochastic, must be nearest with values of 1bit; those of int8, "
            "int4, 2bit, e4m3 and e5m2 have both");
  EXPECT_EQ(parse_error("topk:1%,qsgd:0"), "topk: number of levels is 0, must be 1 to 127");
  EXPECT_EQ(parse_error("topk:1%,qsgd:128"), "topk: number of levels is 128, must be 1 to 127");
  EXPECT_EQ(parse_error("topk:1%,qsgd:x"), "topk: number of levels is 'x', must be a number");
  EXPECT_EQ(parse_error("topk:1%,ternary,nearest"),
            "topk: option 'nearest' decides again what an earlier option decided");
  EXPECT_EQ(parse_error("topk:1%,natural,int8"),
            "topk: option 'int8' decides again what an earlier option decided");
  EXPECT_EQ(parse_error("int8,qsgd:3"),
            "int8: option is 'qsgd:3', but its values have one fixed type; only selectors take a "
            "value codec");
  EXPECT_EQ(parse_error("1bit,nearest"),
            "1bit: option is 'nearest', but it has one way to round; int8, int4, 2bit, e4m3 and "
            "e5m2 have two");
  EXPECT_EQ(parse_error("fp16,block=64"),
            "fp16: option is 'block=64', but it has no blocks; int8, int4, 2bit, 1bit, e4m3, "
            "e5m2, ternary, natural and qsgd have");
  EXPECT_EQ(parse_error("int8,block=100"),
            "int8: block is 100, must be a power of two from 8 to 4096");
  EXPECT_EQ(parse_error("int8,block=8192"),
            "int8: block is 8192, must be a power of two from 8 to 4096");
  EXPECT_EQ(parse_error("int8,block=x"), "int8: block is 'x', must be a number");
  EXPECT_EQ(parse_error("topk:1%,decay=0"), "topk: decay is 0, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:1%,decay=1.5"), "topk: decay is 1.5, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:1%,decay=nan"), "topk: decay is nan, must be in (0, 1]");
  EXPECT_EQ(parse_error("topk:1%,decay=x"), "topk: decay is 'x', must be a number");
  EXPECT_EQ(parse_error("topk:1%,ef21,noef"),
            "topk: option 'noef' decides again what an earlier option decided");
  EXPECT_EQ(parse_error("topk:1%,ef21,decay=0.5"),
            "topk: decay is 0.5, must be 1 with ef21, which keeps what was sent");
  EXPECT_EQ(parse_error("dgc:1%,ef21"),
            "dgc: ef21 is on, must be off: it keeps a velocity of which it clears what was sent");
  EXPECT_EQ(parse_error("fp16,decay=0.5"),
            "fp16: decay is 0.5, must be 1 without error feedback: there is no residual");
  EXPECT_EQ(parse_error("dgc:1%,momentum=1"), "dgc: momentum is 1, must be in [0, 1)");
  EXPECT_EQ(parse_error("dgc:1%,clip=-2"), "dgc: clip is -2, must be finite and not negative");
  EXPECT_EQ(parse_error("dgc:1%,clip=inf"), "dgc: clip is inf, must be finite and not negative");
  EXPECT_EQ(parse_error("dgc:1%,warmup=1.5"), "dgc: warmup is '1.5', must be a number");
  EXPECT_EQ(parse_error("topk:1%,momentum=0.9"),
            "no error");
  EXPECT_EQ(parse_error("topk:1%,clip=2"), "topk: option is 'clip=2', but only dgc takes it");
  EXPECT_EQ(parse_error("int8,warmup=2"),
            "int8: option is 'warmup=2', but it has no density that could fall; topk, chunktopk, "
            "tensortopk, blocktopk, threshold, randomk and dgc have one");
  EXPECT_EQ(parse_error("int8,start=-1"), "int8: start is '-1', must be a number");
  EXPECT_EQ(parse_error("int8,start=9:fp16"),
            "int8: option is 'start=9:fp16', must be start=9 or start=9:bf16");
  EXPECT_EQ(parse_error("int8,start=0:bf16"),
            "int8: start is 0, must be positive where its steps send bf16");
  EXPECT_EQ(parse_error("int8,start=2,start=3"),
            "int8: option 'start=3' decides again what an earlier option decided");
  EXPECT_EQ(parse_error("dgc:1%,clip=2,start=3"),
            "dgc: start is 3 and clip is 2, must not both be there: steps that send everything clip "
            "nothing");
  EXPECT_EQ(parse_error("dgc:1%,warmup=5,warmup=6"),
            "dgc: option 'warmup=6' decides again what an earlier option decided");
  EXPECT_EQ(parse_error("int8,nearest,stochastic"),
            "int8: option 'stochastic' decides again what an earlier option decided");
  for (const char* text : {"int8,", "int8,,ef", "int8,quick", "topk:1%,raw"}) {
    EXPECT_NE(parse_error(text).find("known: fp32, fp16, bf16"), std::string::npos) << text;
  }
  EXPECT_NE(parse_error(""), "no error");
}

TEST(Spec, WhatEachChunkKeepsIsWholeElements) {
  for (const auto& [text, canonical] :
       {std::pair{"chunktopk:1%", "chunktopk:41/4096"}, {"chunktopk:64/4096", "chunktopk:64/4096"},
        {"chunktopk:1/4096", "chunktopk:1/4096"}, {"chunktopk:1e-9", "chunktopk:1/4096"},
        {"chunktopk:0.25,int8", "chunktopk:1024/4096,int8"}, {"randomk:1%,bf16", "randomk:41/4096,bf16"}, {"chunktopk:1", "chunktopk:4096/4096"},
        {"topk:64/4096", "topk:1.5625%"}}) {
    EXPECT_EQ(to_string(parse_spec(text)), canonical);
  }
  for (uint32_t k = 1; k <= 4096; ++k) {
    const CompressorSpec spec = parse_spec(concat("chunktopk:", k, "/4096"));
    EXPECT_EQ(spec.choice.density, k / 4096.0);
    EXPECT_EQ(parse_spec(to_string(spec)), spec);
  }
}

TEST(Spec, FieldsFilledByHandAreValidated) {
  CompressorSpec spec = parse_spec("int8");
  spec.codec.values = ValueCodec::kInt4;
  EXPECT_EQ(message_of([&] { validate(spec); }), "int8: value codec is 4, must be 3");
  spec = parse_spec("topk:1%");
  spec.codec.values = ValueCodec::kRaw;
  EXPECT_EQ(message_of([&] { validate(spec); }),
            "topk: value codec is 5, must be fp32, fp16, bf16, int8, int4, 2bit, 1bit, e4m3, e5m2 or "
            "natural");
  spec = parse_spec("topk:1%,natural");
  spec.codec.rounding = Rounding::kNearest;
  EXPECT_EQ(message_of([&] { validate(spec); }),
            "topk: rounding is nearest, must be stochastic with values of natural or qsgd");
  spec = parse_spec("chunktopk:1%");
  spec.choice.density = 0.01;
  EXPECT_EQ(message_of([&] { validate(spec); }),
            "chunktopk: density is 0.01, must be K/4096 with K from 1 to 4096");
  spec = parse_spec("qsgd:7");
  spec.codec.levels = 8;
  EXPECT_EQ(message_of([&] { validate(spec); }), "qsgd: value codec is 4, must be 3");
  spec = parse_spec("fp16");
  spec.feedback.ef21 = true;
  EXPECT_EQ(message_of([&] { validate(spec); }),
            "fp16: ef21 is on and error feedback is off, must be on for both or off");
  spec = parse_spec("ternary");
  spec.codec.rounding = Rounding::kNearest;
  EXPECT_EQ(message_of([&] { validate(spec); }),
            "ternary: rounding is nearest, must be stochastic");
  spec = parse_spec("int8");
  spec.codec.levels = 3;
  EXPECT_EQ(message_of([&] { validate(spec); }),
            "int8: number of levels is 3, must be 0: only qsgd has levels");
  spec = parse_spec("topk:1%");
  spec.feedback.clip = 3;
  EXPECT_EQ(message_of([&] { validate(spec); }), "topk: clip is 3, must be 0: only dgc has one");
  spec = parse_spec("int8");
  spec.choice.warmup = 3;
  EXPECT_EQ(message_of([&] { validate(spec); }),
            "int8: warmup is 3, must be 0: only selectors have a density that could fall");
  spec = parse_spec("none");
  spec.choice.density = 0.5;
  EXPECT_EQ(message_of([&] { validate(spec); }),
            "none: density is 0.5, must be 1: only selectors take one");
}

TEST(Spec, FingerprintsDiffer) {
  std::vector<uint32_t> seen;
  for (const std::string& text : all_specs()) {
    seen.push_back(fingerprint(parse_spec(text)));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

TEST(Spec, KeptElementsRoundUp) {
  EXPECT_EQ(kept_elements(0.01, 0), 0u);
  EXPECT_EQ(kept_elements(0.01, 1), 1u);
  EXPECT_EQ(kept_elements(0.01, 100), 1u);
  EXPECT_EQ(kept_elements(0.01, 101), 2u);
  EXPECT_EQ(kept_elements(1.0, 12345), 12345u);
}

TEST(Registry, EveryRowsExampleIsItsOwn) {
  for (const CompressorRow& row : compressor_registry()) {
    EXPECT_EQ(parse_spec(row.example).name, row.name);
    EXPECT_FALSE(row.summary.empty() || row.source.empty()) << row.name;
  }
}

}  // namespace
}  // namespace gradwire::testing
