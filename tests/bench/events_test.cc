#include "bench/trainer/events.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <system_error>
#include <thread>

#include "bench/trainer/step_metrics.h"
#include "tests/bench/idx_files.h"

namespace {

using trainer::EventWriter;
using trainer::JsonLine;

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(JsonLine, WritesFieldsInOrder) {
  EXPECT_EQ(JsonLine("step").add("step", 3).add("on", true).add("big", UINT64_MAX).text(),
            R"({"event": "step", "step": 3, "on": true, "big": 18446744073709551615})");
}

TEST(JsonLine, EscapesQuotesBackslashesAndControlCharacters) {
  EXPECT_EQ(JsonLine("e").add("s", std::string_view("a\"b\\c\nd\te\x01\0f", 12)).text(),
            R"({"event": "e", "s": "a\"b\\c\nd\u0009e\u0001\u0000f"})");
}

TEST(JsonLine, KeepsUtf8AndReplacesWhatIsNot) {
  EXPECT_EQ(JsonLine("e").add("s", "é€😀").text(), R"({"event": "e", "s": "é€😀"})");
  EXPECT_EQ(JsonLine("e")
                .add("s",
                     "a\xff"
                     "b\xc3")
                .text(),
            R"({"event": "e", "s": "a\ufffdb\ufffd"})");
  EXPECT_EQ(JsonLine("e").add("s", "\xc0\xaf").text(), R"({"event": "e", "s": "\ufffd\ufffd"})");
  EXPECT_EQ(JsonLine("e").add("s", "\xed\xa0\x80").text(),
            R"({"event": "e", "s": "\ufffd\ufffd\ufffd"})");
}

TEST(JsonLine, DoublesReadBackAsTheSameBits) {
  for (const double value : {0.1, 1.0 / 3.0, 1e-300, 5e-324, 123456789.123456789, -0.0, 2e22,
                             std::numeric_limits<double>::max()}) {
    const std::string text = JsonLine("e").add("x", value).text();
    const double back = std::strtod(text.c_str() + text.find("\"x\": ") + 5, nullptr);
    EXPECT_EQ(back, value) << text;
    EXPECT_EQ(std::signbit(back), std::signbit(value)) << text;
  }
}

TEST(JsonLine, WhatIsNotFiniteOrNotThereIsNull) {
  EXPECT_EQ(JsonLine("e")
                .add("a", std::nan(""))
                .add("b", std::numeric_limits<double>::infinity())
                .add("c", std::optional<double>())
                .add("d", std::optional<double>(1.5))
                .text(),
            R"({"event": "e", "a": null, "b": null, "c": null, "d": 1.5})");
}

TEST(EventWriter, WritesWholeLinesFromManyThreads) {
  const idx_files::Folder folder;
  constexpr int kThreads = 4, kLines = 200;
  {
    EventWriter writer(folder.file("events"));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kLines; ++i) {
          writer.write(JsonLine("e").add("s", "0123456789"));
        }
      });
    }
    for (auto& thread : threads) {
      thread.join();
    }
  }
  std::istringstream lines(read(folder.file("events")));
  std::string line;
  int count = 0;
  for (; std::getline(lines, line); ++count) {
    ASSERT_EQ(line, R"({"event": "e", "s": "0123456789"})");
  }
  EXPECT_EQ(count, kThreads * kLines);
}

TEST(EventWriter, NamesAPathItCannotOpen) {
  try {
    EventWriter writer("/no/such/folder/events");
    FAIL() << "nothing was thrown";
  } catch (const std::system_error& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/folder/events"), std::string::npos);
  }
}

TEST(WriteFile, LeavesOnlyTheWholeFile) {
  const idx_files::Folder folder;
  trainer::write_file(folder.file("trace"), "text");
  EXPECT_EQ(read(folder.file("trace")), "text");
  EXPECT_FALSE(std::filesystem::exists(folder.file("trace.part")));
}

TEST(MetricsMean, LeavesOutTheFirstStepUnlessItIsTheOnlyOne) {
  trainer::MetricsMean mean;
  trainer::StepMetrics step;
  step.step_ms = 100;
  step.interface_bytes_sent = 1;
  mean.add(step);
  EXPECT_EQ(mean.mean().step_ms, 100);
  step.step_ms = 10;
  step.interface_bytes_sent = 5;
  mean.add(step);
  step.step_ms = 20;
  step.interface_bytes_sent = 8;
  mean.add(step);
  EXPECT_EQ(mean.mean().step_ms, 15);
  EXPECT_EQ(mean.mean().interface_bytes_sent, 6.5);
}

}  // namespace
