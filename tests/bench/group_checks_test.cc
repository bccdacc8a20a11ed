#include "bench/trainer/group_checks.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>
#include <utility>

#include "bench/trainer/options.h"
#include "gradwire/kernels/core/error.h"

namespace {

using trainer::DataFolder;
using trainer::Options;

DataFolder small_data() {
  DataFolder data;
  data.train = {.count = 2, .rows = 1, .columns = 2, .pixels = {1, 2, 3, 4}, .labels = {0, 1}};
  data.test = {.count = 1, .rows = 1, .columns = 2, .pixels = {5, 6}, .labels = {1}};
  data.classes = 2;
  return data;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> settings(std::vector<const char*> arguments,
                                  const DataFolder& data = small_data()) {
  arguments.insert(arguments.end(), {"--data", "d"});
  return lines_of(trainer::common_settings(trainer::parse_options(arguments), data));
}

// The lines of `changed` that are not the same as in a run with default options.
std::vector<std::string> differing(const std::vector<std::string>& changed) {
  const auto defaults = settings({});
  EXPECT_EQ(changed.size(), defaults.size());
  std::vector<std::string> found;
  for (size_t i = 0; i < std::min(changed.size(), defaults.size()); ++i) {
    if (changed[i] != defaults[i]) {
      found.push_back(changed[i]);
    }
  }
  return found;
}

// What each rank of a group throws when it holds its text; "" when nothing.
std::vector<std::string> compare(const std::vector<std::string>& texts) {
  const auto group = gradwire::make_in_process_group(static_cast<int>(texts.size()));
  std::vector<std::string> messages(texts.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < texts.size(); ++r) {
    ranks.emplace_back([&, r] {
      const auto stream = gradwire::make_inline_stream(1);
      gradwire::Workspace workspace;
      gradwire::Context context{*stream, workspace};
      try {
        trainer::check_same_settings(texts[r], *group[r], context);
      } catch (const gradwire::InvalidArgument& error) {
        messages[r] = error.what();
        group[r]->abort(error.what());  // as a rank of the trainer does
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  return messages;
}

TEST(CommonSettings, HaveALineForEachOptionThatMustAgree) {
  for (const auto& [option, value] :
       std::vector<std::pair<const char*, const char*>>{{"--batch-size", "16"},
                                                        {"--epochs", "11"},
                                                        {"--max-steps", "7"},
                                                        {"--optimizer", "sgd:momentum=0.8"},
                                                        {"--learning-rate", "0.050000001"},
                                                        {"--schedule", "polynomial"},
                                                        {"--warmup-steps", "21"},
                                                        {"--eval-every", "3"},
                                                        {"--target-accuracy", "0.9"},
                                                        {"--stop-at-target", "1"},
                                                        {"--hidden", "512,512"},
                                                        {"--seed", "2"},
                                                        {"--method", "int4"},
                                                        {"--method", "auto:window=10"},
                                                        {"--exchange", "dense"},
                                                        {"--bucket-kib", "512"},
                                                        {"--no-exchange", "1"}}) {
    SCOPED_TRACE(option);
    EXPECT_EQ(differing(settings({option, value})),
              std::vector<std::string>{std::string(option) + " " + value});
  }
}

TEST(CommonSettings, LeaveOutWhatMayDiffer) {
  EXPECT_EQ(differing(settings({"--threads", "3", "--overlap", "0", "--pace", "1gbit", "--rank",
                                "1", "--timeout-s", "3", "--events", "-", "--interface", "lo"})),
            std::vector<std::string>{});
}

TEST(CommonSettings, SeeEveryPixelLabelAndSizeOfTheData) {
  std::vector<DataFolder> others(5, small_data());
  others[0].train.pixels[3] ^= 1;
  others[1].train.labels[0] ^= 1;
  others[2].test.pixels[0] ^= 1;
  others[3].test.labels[0] ^= 1;
  std::swap(others[4].train.rows, others[4].train.columns);
  for (const DataFolder& other : others) {
    const auto found = differing(settings({}, other));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].find("data: 2 train examples, 1 test examples, hash 0x"), 0u) << found[0];
  }
}

TEST(CheckSameSettings, AcceptsEqualTexts) {
  EXPECT_EQ(compare({"--a 1\n", "--a 1\n", "--a 1\n"}), std::vector<std::string>(3));
}

TEST(CheckSameSettings, TellsEveryRankTheFirstDifference) {
  for (int run = 0; run < 20; ++run) {  // the ranks leave in any order
    EXPECT_EQ(compare({"--a 1\n--b 2\n--c 3\n", "--a 1\n--b 2\n--c 3\n", "--a 1\n--b 22\n--c 4\n"}),
              std::vector<std::string>(3,
                                       "rank 2 runs with --b 22, rank 0 with --b 2: expected "
                                       "the same on all ranks"));
  }
}

TEST(CheckSameSettings, ComparesABoundedPartOfLongTexts) {
  const std::string same(size_t{1} << 16, 'x');
  const auto messages = compare({same + "1", same + "2"});
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(messages[0],
            "rank 1 runs with other options than rank 0 behind their first 65536 bytes, expected "
            "the same on all ranks");
}

}  // namespace
