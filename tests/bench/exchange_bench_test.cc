// gradwire-exchange-bench as its users start it: one process per rank, over Gloo on the loopback.

#include <gtest/gtest.h>

#include <memory>

#include "tests/bench/subprocess.h"
#include "tests/support/temporary_folder.h"

namespace {

using subprocess::lines_of;
using subprocess::Process;
using subprocess::Seconds;

class ExchangeBench : public testing::Test {
 protected:
  void SetUp() override {
#if !GRADWIRE_WITH_GLOO
    GTEST_SKIP() << "the gloo transport is not in this build";
#endif
  }

  /// What rank 0 printed, after all ranks ended with `code`.
  std::vector<std::string> run(const std::vector<std::string>& cases, int ranks, int code) {
    std::vector<std::unique_ptr<Process>> processes;
    for (int r = 0; r < ranks; ++r) {
      std::vector<std::string> command{GRADWIRE_EXCHANGE_BENCH,
                                       "--rank",
                                       std::to_string(r),
                                       "--world-size",
                                       std::to_string(ranks),
                                       "--store",
                                       "file:" + folder_.file("store"),
                                       "--interface",
                                       "lo",
                                       "--timeout-s",
                                       "20"};
#ifdef GRADWIRE_GLOO_PLUGIN
      command.insert(command.end(), {"--plugin", GRADWIRE_GLOO_PLUGIN});
#endif
      for (const std::string& each : cases) {
        command.insert(command.end(), {"--case", each});
      }
      processes.push_back(
          std::make_unique<Process>(command, folder_.file("rank" + std::to_string(r))));
    }
    for (const auto& process : processes) {
      EXPECT_EQ(process->wait(Seconds(60)), code) << process->errors();
    }
    return lines_of(processes[0]->output());
  }

  const gradwire::test_support::TemporaryFolder folder_;
};

/// The numbers of `"name": [...]`.
std::vector<double> numbers(const std::string& line, const std::string& name) {
  const size_t begin = line.find("\"" + name + "\": [");
  if (begin == std::string::npos) {
    ADD_FAILURE() << name << " is not in " << line;
    return {};
  }
  std::istringstream text(line.substr(line.find('[', begin) + 1));
  std::vector<double> values;
  for (double value = 0; text >> value; text.ignore(2)) {
    values.push_back(value);
  }
  return values;
}

TEST_F(ExchangeBench, CountsWhatTheFormulasSay) {
  auto lines = run(
      {"what=all_reduce:ring;numel=30001;repetitions=2", "what=all_reduce:rabenseifner;numel=99",
       "what=all_gather:bruck;numel=3000", "what=all_to_all;numel=30000",
       "what=two_shot;spec=topk:1%;numel=100000;support=skewed;mean=none",
       "what=gather;spec=topk:1%;numel=100000;support=overlap", "what=ring;numel=5000"},
      3, 0);
  // A sign of life per repetition, and one for that which is not told.
  const auto signs = std::erase_if(lines, [](const std::string& line) {
    return line.starts_with(R"({"event": "repetition", "case": "what=)");
  });
  EXPECT_EQ(signs, 3u + 6 * 4);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines.back(), R"({"event": "done"})");
  for (size_t i = 0; i < 7; ++i) {
    SCOPED_TRACE(lines[i]);
    EXPECT_EQ(numbers(lines[i], "bytes_sent"), numbers(lines[i], "formula_bytes"));
    EXPECT_EQ(numbers(lines[i], "bytes_sent").size(), 3u);
    EXPECT_EQ(numbers(lines[i], "seconds").size(), i == 0 ? 2u : 3u);
  }
  // 30001 floats in shards of 10001, 10000 and 10000: four of them each, four frames, and a
  // checksum of the one chunk that follows each frame.
  EXPECT_EQ(numbers(lines[0], "bytes_sent"),
            (std::vector<double>{4 * 40001 + 4 * 68, 4 * 40002 + 4 * 68, 4 * 40001 + 4 * 68}));
  // Rank 0 is folded into rank 1, which meets rank 2.
  EXPECT_EQ(numbers(lines[1], "bytes_sent"),
            (std::vector<double>{4 * 99 + 64, 8 * 99 + 3 * 64, 4 * 99 + 2 * 64}));
  // With the same support everywhere the merged list is as long as one of them.
  const auto payloads = numbers(lines[5], "payload_bytes");
  EXPECT_EQ(numbers(lines[5], "bytes_sent")[0], 2 * (payloads[0] + 64));
}

TEST_F(ExchangeBench, PredictsWhatTheSwitchRuleSays) {
  // 2 ranks, 1000 bytes at 1000 bytes/s: the payload and its frame, without start-ups.
  Process process({GRADWIRE_EXCHANGE_BENCH, "--predict", "0", "1000", "2", "100000", "936", "0.01"},
                  folder_.file("predict"));
  EXPECT_EQ(process.wait(Seconds(20)), 0) << process.errors();
  EXPECT_EQ(process.output().find(R"({"event": "prediction", "gather": 1, )"), 0u)
      << process.output();
  EXPECT_NE(process.output().find(R"("ring": 400.128)"), std::string::npos) << process.output();
}

TEST_F(ExchangeBench, SaysWhatIsWrongWithACase) {
  const auto ended_with = [&](const std::string& text) {
    const auto lines = run({text}, 1, 2);
    return lines.empty() ? "" : lines.back();
  };
  EXPECT_EQ(ended_with("what=ring;numel=0"),
            R"({"event": "error", "kind": "invalid_argument", )"
            R"("message": "case: numel is '0', expected a positive number"})");
  EXPECT_NE(ended_with("support=diagonal").find("expected uniform, skewed, half or overlap"),
            std::string::npos);
  EXPECT_NE(ended_with("speed=9").find("unknown key 'speed'"), std::string::npos);
  EXPECT_NE(ended_with("what=telepathy").find("exchange: unknown name 'telepathy'"),
            std::string::npos);
}

}  // namespace
