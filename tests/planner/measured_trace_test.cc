// A measured step beside the predicted one: events at the places that were worked out on paper.

#include <gtest/gtest.h>

#include <map>

#include <nlohmann/json.hpp>

#include "gradwire/comm/trace.h"
#include "gradwire/planner/predict.h"
#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

// 2 ms forward, 3 ms backward: the gradient is there after 5 ms.
std::string predicted() {
  Profile profile;
  profile.model = "one";
  profile.layers = {{.name = "a", .numel = 1000, .forward_s = 2e-3, .backward_s = 3e-3}};
  Cluster cluster;
  cluster.workers = 2;
  return predicted_chrome_json(profile, cluster);
}

StepTrace step_at(uint64_t number, int64_t begin_us) {
  BucketTrace bucket;
  bucket.ready_us = bucket.begin_us = begin_us + 10;
  bucket.compressed_us = begin_us + 20;
  bucket.exchange_us = begin_us + 30;
  bucket.end_us = begin_us + 70;
  return {number, begin_us, begin_us + 40, begin_us + 80, true, {bucket}};
}

std::map<std::string, double> measured_begins(const std::string& text) {
  std::map<std::string, double> begins;
  const nlohmann::json parsed = nlohmann::json::parse(text);
  for (const auto& event : parsed["traceEvents"]) {
    if (event["pid"] != 0 && event["ph"] == "X") {
      begins[event["name"]] = event["ts"];
    }
  }
  return begins;
}

TEST(MeasuredTrace, TheReducersStepBeginsWhereTheFirstGradientIsThere) {
  Trace trace;
  trace.add(step_at(7, 1000));
  trace.add(step_at(8, 900000));
  const std::string measured = trace.to_chrome_json(0);
  for (const auto& text :
       {beside_measured(predicted(), measured), beside_measured(predicted(), measured, 0)}) {
    const auto begins = measured_begins(text);
    EXPECT_NEAR(begins.at("backward"), 5000, 1e-6);
    EXPECT_NEAR(begins.at("wait"), 5040, 1e-6);
    EXPECT_NEAR(begins.at("bucket 0"), 5030, 1e-6);
    EXPECT_EQ(begins.size(), 3u);
    EXPECT_NE(text.find("measured: rank 0"), std::string::npos);
    EXPECT_NE(text.find("predicted: one"), std::string::npos);
  }
  EXPECT_EQ(message_of([&] { beside_measured(predicted(), measured, 2, "t.json"); }),
            "t.json: step 2, must be below 2, the trace's steps");
}

TEST(MeasuredTrace, AProfilersStepBeginsWithThePredictedOne) {
  const std::string measured = R"({"traceEvents": [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 500, "dur": 100, "pid": 77},
    {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 520, "dur": 30, "pid": "gpu"},
    {"ph": "X", "cat": "kernel", "name": "later", "ts": 720, "dur": 30, "pid": "gpu"}]})";
  const auto begins = measured_begins(beside_measured(predicted(), measured));
  EXPECT_NEAR(begins.at("gemm"), 20, 1e-6);
  EXPECT_FALSE(begins.contains("later"));
}

TEST(MeasuredTrace, WhatHasNoStepIsRefused) {
  const auto message = [](const std::string& text) {
    return message_of([&] { beside_measured(predicted(), text, {}, "t"); });
  };
  EXPECT_EQ(
      message(R"({"traceEvents": []})"),
      "t: no step in it, expected a trace of gradwire's Reducer, or of torch.profiler with its "
      "step() called");
  EXPECT_NE(message("[").find("not JSON"), std::string::npos);
  EXPECT_EQ(message(R"([{"ph": "X", "ts": 1, "dur": -2, "args": {"step": 1}}])"),
            "t: [0].dur: -2, must be a time of at least 0 us");
}

}  // namespace
}  // namespace gradwire::planner
