// gradwire-trainer's checkpoints: going on from one is as if nothing had happened.

#include <filesystem>
#include <fstream>

#include "tests/bench/trainer_runs.h"

namespace trainer_runs {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

class Checkpoint : public Trainer {
 protected:
  std::string folder() const { return folder_.path() + "/saved"; }

  Arguments with(Arguments arguments, const Arguments& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // Runs to the end and returns what it printed.
  std::string trained(const Arguments& arguments) {
    const auto run = start("run", arguments);
    EXPECT_EQ(run->wait(kLong), 0) << run->errors();
    return run->output();
  }

  std::string refused(const Arguments& arguments) {
    const auto run = start("run", arguments);
    EXPECT_EQ(run->wait(kLong), 1) << run->output();
    return run->errors();
  }

  Arguments saved(const std::string& every) {
    return {"--checkpoint", folder(), "--checkpoint-every", every};
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder())) {
      all.push_back(entry.path().filename().string());
    }
    std::sort(all.begin(), all.end());
    return all;
  }
};

std::string last_hash(const std::string& output) {
  return field(events_named(output, "epoch").back(), "parameter_hash");
}

TEST_F(Checkpoint, ResumedTrainingEndsWithTheSameBits) {
  const std::vector<Arguments> jobs = {
      {"--method", "none"},
      {"--method", "topk:5%,int4", "--optimizer", "lamb"},
      {"--method", "powersgd:2", "--optimizer", "adamw:state=8bit,min_8bit_size=64"},
      {"--method", "dgc:1%", "--convolutions", "3"},
      {"--method", "topk:5%,ef21"},
      {"--method", "1bit", "--exchange", "two_shot", "--optimizer", "onebit-adam:freeze_step=5"},
      {"--method", "int8", "--local-steps", "4", "--optimizer", "adamw"},
  };
  for (const Arguments& job : jobs) {
    SCOPED_TRACE(testing::PrintToString(job));
    fs::remove_all(folder());
    const Arguments common = with({"--world-size", "2"}, job);
    const std::string whole = trained(with(common, {"--max-steps", "24"}));
    const auto half = trained(with(with(common, saved("4")), {"--max-steps", "12"}));
    EXPECT_NE(last_hash(half), last_hash(whole));
    EXPECT_EQ(names(), (std::vector<std::string>{"step-12", "step-8"}));
    const auto rest =
        trained(with(with(common, saved("4")), {"--max-steps", "24", "--resume", "1"}));
    EXPECT_EQ(field(events_named(rest, "start").at(0), "resumed_at"), "12");
    EXPECT_EQ(field(events_named(rest, "step").at(0), "step"), "13");
    EXPECT_EQ(last_hash(rest), last_hash(whole));
  }
}

TEST_F(Checkpoint, OtherNumbersOfRanksGoOnFromTheSameEpoch) {
  for (const auto& [from, to] : {std::pair{"4", "2"}, {"2", "4"}}) {
    SCOPED_TRACE(from);
    fs::remove_all(folder());
    const Arguments common = {"--method", "topk:5%,int4"};
    trained(with(with(common, saved("0")), {"--world-size", from, "--epochs", "3"}));
    const auto rest = trained(
        with(with(common, saved("0")), {"--world-size", to, "--epochs", "8", "--resume", "1"}));
    const int per_epoch = 320 / 16 / std::stoi(to);
    EXPECT_EQ(field(events_named(rest, "start").at(0), "resumed_at"),
              std::to_string(3 * per_epoch));
    EXPECT_EQ(field(events_named(rest, "epoch").at(0), "epoch"), "4");
    EXPECT_EQ(events_named(rest, "step").size(), static_cast<size_t>(5 * per_epoch));
    const auto done = events_named(rest, "done");
    ASSERT_FALSE(done.empty());
    EXPECT_GT(std::stod(field(done[0], "final_accuracy")), 0.9);
  }
}

TEST_F(Checkpoint, AHalfWrittenOneIsNotTaken) {
  trained(with(saved("0"), {"--world-size", "2", "--epochs", "2"}));
  fs::create_directories(folder() + "/step-99.partial");
  const auto rest =
      trained(with(saved("0"), {"--world-size", "2", "--epochs", "3", "--resume", "1"}));
  EXPECT_EQ(field(events_named(rest, "start").at(0), "resumed_at"), "20");
}

TEST_F(Checkpoint, IsRefusedWithTheFileThatIsWrong) {
  const Arguments again = with(saved("0"), {"--world-size", "2", "--epochs", "4", "--resume", "1"});
  EXPECT_NE(refused(again).find("there is no checkpoint"), std::string::npos);
  trained(with(saved("0"), {"--world-size", "2", "--epochs", "2"}));
  EXPECT_NE(refused(with(saved("0"), {"--world-size", "2", "--epochs", "2", "--resume", "1"}))
                .find("expected more --epochs"),
            std::string::npos);
  EXPECT_NE(refused(with(again, {"--hidden", "7"})).find("layer0.weight has"), std::string::npos);
  EXPECT_NE(refused(with(again, {"--optimizer", "lamb"})).find("is missing, must be there"),
            std::string::npos);
  const std::vector<std::pair<std::string, std::string>> files = {
      {"parameters", "checksum"},
      {"rank-1.optimizer", "checksum"},
      {"rank-1.residuals", "checkpoint of rank 1: a parameter has"}};
  for (const auto& [file, expected] : files) {
    SCOPED_TRACE(file);
    const std::string path = folder() + "/step-20/" + file;
    const auto size = fs::file_size(path);
    std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
    out.seekg(static_cast<long>(size / 2));
    const char kept = static_cast<char>(out.peek());
    out.seekp(static_cast<long>(size / 2)).put(static_cast<char>(kept ^ 1)).flush();
    const std::string words = refused(again);
    EXPECT_NE(words.find(expected), std::string::npos) << words;
    out.seekp(static_cast<long>(size / 2)).put(kept).flush();
  }
  fs::remove(folder() + "/step-20/rank-0.optimizer");
  EXPECT_NE(refused(again).find("rank-0.optimizer"), std::string::npos);
}

TEST_F(Checkpoint, AFolderThatCannotBeWrittenIsARunErrorWithItsName) {
  std::ofstream(folder()) << "a file";
  EXPECT_NE(refused(with(saved("0"), {"--world-size", "2"})).find(folder()), std::string::npos);
}

TEST_F(Checkpoint, NeedsAFolderAndAnExchange) {
  for (const Arguments& bad :
       {Arguments{"--resume", "1"}, Arguments{"--checkpoint", "x", "--no-exchange", "1"},
        Arguments{"--keep-checkpoints", "0"}}) {
    const auto run = start("run", bad);
    EXPECT_EQ(run->wait(kPrompt), 2) << run->errors();
  }
}

}  // namespace
}  // namespace trainer_runs
