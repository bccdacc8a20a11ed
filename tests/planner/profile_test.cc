// Profiles: what is read is what was written, and what cannot be right is refused with its place.

#include "gradwire/planner/profile.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "gradwire/kernels/core/error.h"
#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

const std::string kText = R"({
 "format": "gradwire.profile", "version": 1, "model": "mlp", "machine": "a", "source": "hand",
 "batch": 32, "ranks": 2,
 "step": {"io_s": 0.002, "host_to_device_s": 0.001, "other_s": 0.5, "hand_over_s": 0.25,
          "measured_s": 0.75},
 "layers": [
  {"name": "w", "numel": 1000, "dtype": "float16", "forward_s": 0.25, "backward_s": 0.125,
   "ready_s": 0.5, "compress_s": 0.01, "exchange_s": 0.02, "exchange_cpu_s": 0.0125,
   "decompress_s": 0.03, "update_s": 0.04},
  {"name": "relu", "numel": 0, "forward_s": 0.0625, "backward_s": 0.0625},
  {"name": "b", "numel": 10, "forward_s": 0, "backward_s": 0.25, "ready_s": 0.375}
 ]})";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& from, const std::string& to) {
  return message_of([&] { parse_profile(with(kText, from, to), "run.json"); });
}

Profile two_layers() {
  Profile profile;
  profile.model = "two";
  profile.layers = {{.name = "a", .numel = 4, .forward_s = 1, .backward_s = 2},
                    {.name = "b", .numel = 2, .forward_s = 3, .backward_s = 4}};
  return profile;
}

TEST(Profile, EveryKeyIsRead) {
  const Profile profile = parse_profile(kText);
  EXPECT_EQ(profile.model, "mlp");
  EXPECT_EQ(profile.machine, "a");
  EXPECT_EQ(profile.source, "hand");
  EXPECT_EQ(profile.batch, 32u);
  EXPECT_EQ(profile.ranks, 2u);
  EXPECT_EQ(profile.io_s, 0.002);
  EXPECT_EQ(profile.host_to_device_s, 0.001);
  EXPECT_EQ(profile.other_s, 0.5);
  EXPECT_EQ(profile.measured_step_s, 0.75);
  ASSERT_EQ(profile.layers.size(), 3u);
  const LayerProfile& w = profile.layers[0];
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.numel, 1000u);
  EXPECT_EQ(w.dtype, DType::kFloat16);
  EXPECT_EQ(w.bytes(), 2000);
  EXPECT_EQ(w.forward_s, 0.25);
  EXPECT_EQ(w.backward_s, 0.125);
  EXPECT_EQ(w.ready_s, 0.5);
  EXPECT_EQ(w.compress_s, 0.01);
  EXPECT_EQ(w.exchange_s, 0.02);
  EXPECT_EQ(w.exchange_cpu_s, 0.0125);
  EXPECT_EQ(w.decompress_s, 0.03);
  EXPECT_EQ(w.update_s, 0.04);
  EXPECT_EQ(profile.layers[1].dtype, DType::kFloat32);
  EXPECT_FALSE(profile.layers[1].ready_s.has_value());
  EXPECT_EQ(profile.numel(), 1010u);
  EXPECT_EQ(profile.gradient_bytes(), 2000 + 40);
  EXPECT_EQ(profile.forward_s(), 0.5 + 0.25 + 0.0625);
  EXPECT_EQ(profile.backward_s(), 0.5);  // the last ready time, above 0.125 + 0.0625 + 0.25
}

TEST(Profile, WhatIsWrittenReadsBackTheSame) {
  const Profile profile = parse_profile(kText);
  EXPECT_EQ(to_json(parse_profile(to_json(profile))), to_json(profile));
  const Profile again = parse_profile(to_json(profile));
  EXPECT_EQ(again.layers[0].exchange_s, 0.02);
  EXPECT_EQ(again.layers[0].exchange_cpu_s, 0.0125);
  EXPECT_EQ(again.hand_over_s, 0.25);
  EXPECT_EQ(again.measured_step_s, 0.75);
  EXPECT_EQ(again.layers[2].ready_s, 0.375);
  Profile thirds = two_layers();
  thirds.layers[0].forward_s = 1.0 / 3;  // all digits survive
  EXPECT_EQ(parse_profile(to_json(thirds)).layers[0].forward_s, 1.0 / 3);
}

TEST(Profile, BackwardGoesFromTheLastLayerToTheFirst) {
  const auto parts = backward_parts(two_layers());
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].layer, 1u);
  EXPECT_EQ(parts[0].seconds, 4);
  EXPECT_EQ(parts[1].layer, 0u);
  EXPECT_EQ(parts[1].seconds, 2);
}

TEST(Profile, ReadyTimesDecideTheOrderAndTheGaps) {
  Profile profile = two_layers();
  profile.layers[0].ready_s = 1.5;
  profile.layers[1].ready_s = 5;
  const auto parts = backward_parts(profile);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].layer, 0u);
  EXPECT_EQ(parts[0].seconds, 1.5);
  EXPECT_EQ(parts[1].layer, 1u);
  EXPECT_EQ(parts[1].seconds, 3.5);
  EXPECT_EQ(parts[2].layer, kNoLayer);  // backward takes 6 s, the last gradient was there after 5
  EXPECT_EQ(parts[2].seconds, 1);
}

TEST(Profile, CalibrationFillsAStepOfOneWorker) {
  const Profile profile = calibrated(two_layers(), 12.5);
  EXPECT_EQ(profile.other_s, 2.5);  // 12.5 - (1 + 3) - (2 + 4)
  EXPECT_EQ(calibrated(profile, 12.5).other_s, 2.5);
  EXPECT_EQ(message_of([] { calibrated(two_layers(), 9); }),
            "calibrated: a step of 9 s on one worker, must be at least the 10 s its parts take");
}

TEST(Profile, WhatCannotBeRightIsRefusedWithItsPlace) {
  EXPECT_EQ(refusal("\"forward_s\": 0.25", "\"forward_s\": -0.25"),
            "run.json: layers[0] 'w': forward_s: -0.25 s, must be a time of at least 0 s");
  EXPECT_EQ(
      refusal("\"forward_s\": 0.25", "\"forward_s\": 25000"),
      "run.json: layers[0] 'w': forward_s: 25000 s, must be at most 3600 s; was it written in "
      "milliseconds or microseconds?");
  EXPECT_EQ(refusal("\"exchange_cpu_s\": 0.0125", "\"exchange_cpu_s\": -1"),
            "run.json: layers[0] 'w': exchange_cpu_s: -1 s, must be a time of at least 0 s");
  EXPECT_EQ(refusal("\"hand_over_s\": 0.25", "\"hand_over_s\": -1"),
            "run.json: step.hand_over_s: -1 s, must be a time of at least 0 s");
  EXPECT_EQ(refusal("\"forward_s\": 0.25", "\"forward_s\": \"fast\""),
            "run.json: layers[0].forward_s: \"fast\", must be a number");
  EXPECT_EQ(refusal("\"forward_s\": 0.25, ", ""),
            "run.json: layers[0]: no key 'forward_s', expected one");
  EXPECT_EQ(refusal("\"numel\": 1000", "\"numel\": 10.5"),
            "run.json: layers[0].numel: 10.5, must be a whole number of at least 0");
  EXPECT_EQ(refusal("float16", "int7"),
            "run.json: layers[0].dtype: unknown name 'int7', known: float32, float16, bfloat16");
  EXPECT_EQ(refusal("\"name\": \"b\"", "\"name\": \"w\""),
            "run.json: layers[2] 'w': a second layer of this name, expected one");
  EXPECT_EQ(refusal(", \"ready_s\": 0.375", ""),
            "run.json: layers[2] 'b': no ready_s, but other layers have one: all with elements "
            "must, or none");
  EXPECT_EQ(refusal("\"batch\": 32", "\"batch\": 0"),
            "run.json: batch: 0, must be at least 1 sample");
  EXPECT_EQ(refusal("\"ranks\": 2", "\"ranks\": 2, \"gpus\": 8"),
            "run.json: key: unknown name 'gpus', known: format, version, model, machine, source, "
            "batch, ranks, step, layers");
  EXPECT_EQ(refusal("\"model\": \"mlp\"", "\"model\": \"mlp\", \"model\": \"cnn\""),
            "run.json: key 'model' twice in one object, expected once");
  EXPECT_EQ(refusal("\"version\": 1", "\"version\": 2"),
            "run.json: version: 2, must be 1: this build reads no other version");
  EXPECT_EQ(refusal("\"io_s\": 0.002", "\"io_s\": 1e400"),
            "run.json: a number that no double holds, expected numbers up to 1.8e308");
}

TEST(Profile, TextThatIsNotJsonIsPlacedByLineAndColumn) {
  EXPECT_EQ(message_of([] { parse_profile("{\n \"format\": oops\n}", "a.json"); }),
            "a.json: line 2, column 12: not JSON here, expected valid JSON");
  EXPECT_EQ(message_of([] { parse_profile("", "a.json"); }),
            "a.json: line 1, column 1: not JSON here, expected valid JSON");
  EXPECT_EQ(message_of([] { parse_profile("[]", "a.json"); }),
            "a.json: an array of 0, must be an object");
  EXPECT_NE(message_of([] { parse_profile(std::string(100000, '['), "a.json"); }),
            "nothing was thrown");
}

TEST(Profile, ABackwardPassOfNoTimeIsRefused) {
  Profile profile = two_layers();
  profile.layers[0].backward_s = profile.layers[1].backward_s = 0;
  EXPECT_EQ(message_of([&] { validate(profile); }),
            "profile: backward takes 0 s over all layers, must be above 0 s");
  profile.layers[0].backward_s = 1e-9;
  EXPECT_EQ(message_of([&] { validate(profile); }),
            "profile: backward takes 1e-09 s over all layers, must be at least 1e-07 s; was it "
            "written in other units?");
  profile.layers.clear();
  EXPECT_EQ(message_of([&] { validate(profile); }), "profile: layers: none, expected at least one");
  profile = two_layers();
  profile.layers[1].backward_s = std::numeric_limits<double>::infinity();
  EXPECT_EQ(message_of([&] { validate(profile); }),
            "profile: layers[1] 'b': backward_s: inf s, must be a time of at least 0 s");
}

TEST(Profile, AFileThatIsNotThereIsNamed) {
  EXPECT_EQ(message_of([] { read_profile("/nowhere/at/all.json"); }),
            "/nowhere/at/all.json: cannot be opened, expected a readable file");
}

}  // namespace
}  // namespace gradwire::planner
