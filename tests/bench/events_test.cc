#include "bench/trainer/events.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
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

TEST(JsonLine, NumbersByNameAreAnObject) {
  const std::map<std::string, double> none,
      some = {{"a \"b\"", 0.5}, {"c", std::numeric_limits<double>::infinity()}, {"d", 3}};
  EXPECT_EQ(JsonLine("e").add("x", some).add("y", none).add("z", 1).text(),
            R"({"event": "e", "x": {"a \"b\"": 0.5, "c": null, "d": 3}, "y": {}, "z": 1})");
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
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(WriteFile, LeavesAloneWhatWaitsUnderATemporaryName) {
  const idx_files::Folder folder;
  folder.write("victim", {'x'});
  std::filesystem::create_symlink("victim", folder.file("trace.part"));
  trainer::write_file(folder.file("trace"), "text");
  EXPECT_EQ(read(folder.file("trace")), "text");
  EXPECT_EQ(read(folder.file("victim")), "x");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("trace.part")));
}

TEST(WriteFile, LeavesNothingWhereItFails) {
  const idx_files::Folder folder;
  folder.write("trace", {'x'});
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit had {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &had), 0);
  struct rlimit less = had;
  less.rlim_cur = 2;  // bytes, of which a third is an error
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &less), 0);
  EXPECT_THROW(trainer::write_file(folder.file("trace"), "text"), std::system_error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &had), 0);
  ::signal(SIGXFSZ, before);
  EXPECT_EQ(read(folder.file("trace")), "x");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(WriteFile, TakesTheLongestNameThatThereIs) {
  const idx_files::Folder folder;
  const std::string name(255, 'n');
  trainer::write_file(folder.file(name), "text");
  EXPECT_EQ(read(folder.file(name)), "text");
}

TEST(WriteFile, GivesThePermissionsThatAnOpenFileWouldHave) {
  const idx_files::Folder folder;
  const mode_t before = ::umask(0027);
  trainer::write_file(folder.file("new"), "text");
  folder.write("old", {'x'});
  ::umask(before);
  std::filesystem::permissions(folder.file("old"), std::filesystem::perms(0604));
  trainer::write_file(folder.file("old"), "text");
  const auto mode_of = [&](const std::string& name) {
    return static_cast<int>(std::filesystem::status(folder.file(name)).permissions());
  };
  EXPECT_EQ(mode_of("new"), 0640);
  EXPECT_EQ(mode_of("old"), 0604);
}

TEST(WriteFile, FollowsLinksToTheFileTheyName) {
  const idx_files::Folder folder;
  std::filesystem::create_directory(folder.file("far"));
  for (const std::string target : {"far/old", "far/new"}) {  // relative to the link
    SCOPED_TRACE(target);
    if (target == "far/old") {
      folder.write(target, {'x', 'y', 'z'});
    }
    std::filesystem::create_symlink(target, folder.file("link"));
    std::filesystem::create_symlink(folder.file("link"), folder.file("link to link"));
    trainer::write_file(folder.file("link to link"), "text");
    EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link to link")));
    EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
    EXPECT_EQ(read(folder.file(target)), "text");
    std::filesystem::remove(folder.file("link"));
    std::filesystem::remove(folder.file("link to link"));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.file("far")), {}), 2);
  std::filesystem::create_symlink("circle", folder.file("circle"));
  EXPECT_THROW(trainer::write_file(folder.file("circle"), "text"), std::system_error);
}

TEST(WriteFile, WritesIntoDevicesAndReportsTheirErrors) {
  const idx_files::Folder folder;
  std::filesystem::create_symlink("/dev/full", folder.file("full"));
  try {
    trainer::write_file(folder.file("full"), "text");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), ENOSPC) << error.what();
    EXPECT_NE(std::string(error.what()).find(folder.file("full")), std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("full")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_THROW(trainer::write_file(folder.path(), "text"), std::system_error);
}

TEST(WriteFile, WritesIntoPipes) {
  const idx_files::Folder folder;
  const std::string path = folder.file("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  trainer::write_file(path, "text");
  std::array<char, 8> got{};
  EXPECT_EQ(::read(reader, got.data(), got.size()), 4);
  EXPECT_STREQ(got.data(), "text");
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(path));
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
