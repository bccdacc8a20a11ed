// What others measured: step times of B-Caffe, buckets of PyTorch's DDP.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/importers.h"
#include "gradwire/planner/predict.h"

namespace gradwire::planner {
namespace {

std::string text_of_file(const std::string& name) {
  std::ifstream in(concat(GRADWIRE_SOURCE_DIR, "/tests/planner/data/", name));
  EXPECT_TRUE(in.is_open()) << name;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Profile b_caffe(const std::string& log, BCaffeTimes times) {
  return import_b_caffe(text_of_file("b-caffe/" + log), times, log);
}

struct Row {
  std::string log;
  BCaffeTimes times;
  double images_per_s;  // per node, measured
};

TEST(Measured, BCaffesIterationsArePredictedWithinSevenPercent) {
  constexpr double kBatch = 64;
  // The one constant: what an iteration on one node takes beside backward.
  const double alone = kBatch / 163.36;
  const double rest = alone - b_caffe("tmpcomm.log", BCaffeTimes::kLayers).backward_s();
  EXPECT_NEAR(rest, 0.1902, 1e-4);
  const Row rows[] = {{"tmp2comm.log", BCaffeTimes::kLayers, 149.66},
                      {"tmp4comm.log", BCaffeTimes::kLayers, 149.82},
                      {"tmp8comm.log", BCaffeTimes::kLayers, 125.80},
                      {"tmp4ocomm.log", BCaffeTimes::kMerged, 150.06},
                      {"tmp8ocomm.log", BCaffeTimes::kMerged, 151.36}};
  // The recursion over the logs' rows, computed by another program.
  const double recursion_ms[] = {390.9, 452.2, 501.4, 392.8, 467.8};
  double error = 0;
  for (size_t r = 0; r < std::size(rows); ++r) {
    Profile profile = b_caffe(rows[r].log, rows[r].times);
    profile.other_s = rest;
    const double predicted =
        predict(profile, {},
                {.schedule = Schedule::kWfbp, .exchange = StepOptions::Exchange::kMeasured})
            .step_s;
    EXPECT_NEAR(predicted * 1e3, recursion_ms[r], 0.1) << rows[r].log;
    const double measured = kBatch / rows[r].images_per_s;
    error += std::fabs(predicted / measured - 1) / std::size(rows);
  }
  EXPECT_LE(error, 0.07);
  RecordProperty("mean_error_percent", std::to_string(error * 100));
}

TEST(Measured, DdpsBucketsOfResNet50AreExact) {
  const Profile resnet = import_layers(text_of_file("layers/resnet50.csv"),
                                       {.flops_per_s = 1e12, .flops_per_element = 2}, "resnet50");
  const std::vector<size_t> expected = {2049000, 7875584, 6563840, 6637568, 2431040};
  EXPECT_EQ(numels(resnet, ddp_buckets(resnet)), expected);
  // And these are what ran on two A100: the all-reduces of each step of the trace, in its order.
  std::istringstream trace(text_of_file("hta/resnet50_ddp_2xA100_nccl.csv"));
  std::map<std::string, std::vector<size_t>> steps;
  for (std::string line; std::getline(trace, line);) {
    if (line.find("AllReduce") != std::string::npos) {
      std::istringstream cells(line);
      std::string step, duration, kernel, elements;
      std::getline(cells, step, ',');
      std::getline(cells, duration, ',');
      std::getline(cells, kernel, ',');
      std::getline(cells, elements, ',');
      steps[step].push_back(std::stoul(elements));
    }
  }
  EXPECT_EQ(steps.size(), 3u);
  for (const auto& [step, elements] : steps) {
    EXPECT_EQ(elements, expected) << step;
  }
}

}  // namespace
}  // namespace gradwire::planner
