#pragma once
// gradwire-trainer as a program, on four quadrants of 8 x 8 pixels: starting it, reading its
// events.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/event_lines.h"
#include "tests/bench/idx_files.h"
#include "tests/bench/subprocess.h"

namespace trainer_runs {

using subprocess::Process;
using subprocess::Seconds;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSlower = 6;
#else
constexpr double kSlower = 1;
#endif
constexpr Seconds kLong{60 * kSlower};
constexpr Seconds kPrompt{20 * kSlower};  // far below the timeouts of 60 s

// A field that is a list of lists of whole numbers, {} when it is not there.
inline std::vector<std::vector<int64_t>> rows_of_numbers(const std::string& line,
                                                         const std::string& key) {
  std::vector<std::vector<int64_t>> rows;
  const size_t begin = line.find("\"" + key + "\": [");
  const size_t end = begin == std::string::npos ? 0 : line.find("]]", begin);
  for (size_t row = line.find('[', line.find('[', begin) + 1); row < end;
       row = line.find('[', row + 1)) {
    std::istringstream text(line.substr(row + 1, line.find(']', row) - row - 1));
    rows.emplace_back();
    for (std::string number; std::getline(text, number, ',');) {
      rows.back().push_back(std::stoll(number));
    }
  }
  return rows;
}

class Trainer : public testing::Test {
 protected:
  void SetUp() override {
    idx_files::write_quadrants(folder_, "train", 320, 1);
    idx_files::write_quadrants(folder_, "t10k", 90, 2);
  }

  std::unique_ptr<Process> start(const std::string& log, std::vector<std::string> more) {
    std::vector<std::string> command = {
        GRADWIRE_TRAINER, "--data", folder_.path(), "--hidden", "32,32", "--batch-size", "16",
        "--threads",      "1",      "--events",     "-"};
    command.insert(command.end(), more.begin(), more.end());
    return std::make_unique<Process>(command, folder_.file(log));
  }

  std::unique_ptr<Process> start_rank(int rank, int ranks, const std::vector<std::string>& more) {
    std::vector<std::string> options = {"--transport",
                                        "gloo",
                                        "--store",
                                        "file:" + folder_.file("store"),
                                        "--interface",
                                        "lo",
                                        "--rank",
                                        std::to_string(rank),
                                        "--world-size",
                                        std::to_string(ranks),
                                        "--die-with-parent",
                                        std::to_string(getpid())};
#ifdef GRADWIRE_GLOO_PLUGIN
    options.insert(options.end(), {"--plugin", GRADWIRE_GLOO_PLUGIN});
#endif
    options.insert(options.end(), more.begin(), more.end());
    return start("rank" + std::to_string(rank), options);
  }

  std::vector<std::unique_ptr<Process>> start_ranks(int ranks,
                                                    const std::vector<std::string>& more) {
    std::vector<std::unique_ptr<Process>> all;
    for (int r = 0; r < ranks; ++r) {
      all.push_back(start_rank(r, ranks, more));
    }
    return all;
  }

  // Waits until rank 0 has printed `steps` steps.
  static bool has_trained(const Process& rank0, size_t steps) {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (events_named(rank0.output(), "step").size() < steps) {
      if (std::chrono::steady_clock::now() > deadline) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  // What every complete run must show; `output` is rank 0's.
  static void expect_trained(const std::string& output, size_t steps) {
    const auto all = events_named(output, "step");
    ASSERT_EQ(all.size(), steps);
    for (const std::string& step : all) {
      EXPECT_NE(field(step, "bytes_sent"), "0") << step;
      EXPECT_EQ(field(step, "bytes_sent"), field(step, "predicted_bytes_sent")) << step;
    }
    EXPECT_LT(std::stod(field(all.back(), "loss")), 0.3 * std::stod(field(all.front(), "loss")));
    for (const std::string& epoch : events_named(output, "epoch")) {
      EXPECT_EQ(field(epoch, "hashes_equal"), "true") << epoch;
      EXPECT_EQ(field(epoch, "parameter_hash").size(), 16u) << epoch;
    }
    const auto done = events_named(output, "done");
    ASSERT_FALSE(done.empty());
    EXPECT_GT(std::stod(field(done[0], "final_accuracy")), 0.9);
    EXPECT_EQ(field(done[0], "steps"), std::to_string(steps));
    EXPECT_TRUE(events_named(output, "error").empty()) << output;
  }

  idx_files::Folder folder_;
};

}  // namespace trainer_runs
