// gradwire-trainer as a program: what it learns, refuses and leaves behind.

#include <algorithm>

#include "tests/bench/cifar_files.h"
#include "tests/bench/trainer_runs.h"

namespace trainer_runs {
namespace {

TEST_F(Trainer, LearnsWithRanksAsThreads) {
  for (const std::string method : {"none", "fp16", "int4", "topk:5%", "topk:5%,int4"}) {
    SCOPED_TRACE(method);
    const auto run = start("run", {"--world-size", "3", "--epochs", "8", "--method", method});
    ASSERT_EQ(run->wait(kLong), 0) << run->errors();
    const std::string output = run->output();
    EXPECT_EQ(events_named(output, "start").size(), 3u);
    EXPECT_EQ(events_named(output, "done").size(), 3u);
    EXPECT_EQ(events_named(output, "epoch").size(), 8u);
    EXPECT_EQ(events_named(output, "evaluate").size(), 8u);
    expect_trained(output, 48);  // 320 examples / (3 ranks * 16) = 6 steps
  }
}

TEST_F(Trainer, LearnsWithEveryOptimizerAtItsDefaultRate) {
  for (const std::string optimizer : {"sgd", "lars", "lamb"}) {
    SCOPED_TRACE(optimizer);
    const auto run =
        start("run", {"--world-size", "2", "--epochs", "12", "--optimizer", optimizer});
    ASSERT_EQ(run->wait(kLong), 0) << run->errors();
    expect_trained(run->output(), 120);
  }
}

TEST_F(Trainer, LearnsWithConvolutions) {
  const auto run = start("run", {"--world-size", "2", "--epochs", "8", "--method", "topk:5%,int4",
                                 "--convolutions", "4,8", "--learning-rate", "0.02"});
  ASSERT_EQ(run->wait(kLong), 0) << run->errors();
  expect_trained(run->output(), 80);
  // 4 x 9 + 4, 8 x 36 + 8, then 2 x 2 x 8 inputs of 32, 32 and 4 classes
  EXPECT_EQ(field(events_named(run->output(), "start").at(0), "parameters"),
            std::to_string(40 + 296 + 32 * 33 + 32 * 33 + 4 * 33));
}

TEST_F(Trainer, LearnsTheColoursOfCifar) {
  const idx_files::Folder folder;
  cifar_files::write(folder, 64);
  // Convolutions: 4 x 27 + 4, 8 x 36 + 8, then 8 x 8 x 8 inputs; else 3 x 32 x 32.
  const std::vector<std::pair<std::vector<std::string>, size_t>> models = {
      {{"--convolutions", "4,8"}, 112 + 296 + 32 * 513 + 32 * 33 + 10 * 33},
      {{"--method", "topk:5%,int4"}, 32 * 3073 + 32 * 33 + 10 * 33}};
  for (const auto& [model, parameters] : models) {
    SCOPED_TRACE(model[0]);
    std::vector<std::string> options = {"--data",          folder.path(), "--world-size", "2",
                                        "--learning-rate", "0.02",        "--epochs",     "12"};
    options.insert(options.end(), model.begin(), model.end());
    const auto run = start("run", options);
    ASSERT_EQ(run->wait(kLong), 0) << run->errors();
    expect_trained(run->output(), 120);
    const std::string begun = events_named(run->output(), "start").at(0);
    EXPECT_EQ(field(begun, "parameters"), std::to_string(parameters));
    EXPECT_EQ(field(begun, "train_examples"), "320");
    EXPECT_EQ(field(begun, "test_examples"), "64");
  }
}

TEST_F(Trainer, ParametersDoNotDependOnOverlap) {
  std::vector<std::string> hashes;
  for (const std::string overlap : {"0", "1"}) {
    const auto run = start("run", {"--world-size", "2", "--epochs", "1", "--overlap", overlap});
    ASSERT_EQ(run->wait(kLong), 0) << run->errors();
    hashes.push_back(field(events_named(run->output(), "epoch").at(0), "parameter_hash"));
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST_F(Trainer, StopsAtTheTargetAndReportsItOnce) {
  const auto run = start("run", {"--world-size", "2", "--epochs", "50", "--target-accuracy", "0.8",
                                 "--stop-at-target", "1", "--eval-every", "2"});
  ASSERT_EQ(run->wait(kLong), 0) << run->errors();
  const auto target = events_named(run->output(), "target");
  ASSERT_EQ(target.size(), 1u);
  EXPECT_GE(std::stod(field(target[0], "accuracy")), 0.8);
  const auto done = events_named(run->output(), "done");
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(field(done[0], "steps"), field(target[0], "step"));
  EXPECT_NE(field(done[0], "seconds_to_target"), "null");
  EXPECT_LT(std::stoul(field(done[0], "steps")), 500u);
}

TEST_F(Trainer, TrainsAloneWithoutExchange) {
  const auto run = start("run", {"--world-size", "2", "--max-steps", "5", "--no-exchange", "1"});
  ASSERT_EQ(run->wait(kLong), 0) << run->errors();
  const auto steps = events_named(run->output(), "step");
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_EQ(field(steps[0], "bytes_sent"), "0");
  EXPECT_EQ(field(events_named(run->output(), "start").at(0), "no_exchange"), "true");
  EXPECT_EQ(field(events_named(run->output(), "epoch").at(0), "hashes_equal"), "null");
}

TEST_F(Trainer, RefusesProcessorsThatItMayNotUse) {
  const auto run =
      start("run", {"--world-size", "2", "--max-steps", "2", "--compute-cpus", "1023"});
  EXPECT_EQ(run->wait(kLong), 1);
  EXPECT_NE(run->errors().find("--compute-cpus 1023: Invalid argument, expected processors"),
            std::string::npos)
      << run->errors();
}

TEST_F(Trainer, WritesTheTraceOfEachRank) {
  const auto run = start("run", {"--world-size", "2", "--max-steps", "3", "--chrome-trace",
                                 folder_.file("trace.json")});
  ASSERT_EQ(run->wait(kLong), 0) << run->errors();
  for (const char* name : {"trace.json", "trace.rank1.json"}) {
    EXPECT_NE(subprocess::read_file(folder_.file(name)).find("traceEvents"), std::string::npos)
        << name;
  }
}

TEST_F(Trainer, TellsOfEveryStepWhatWentOnAtTheSameTime) {
  const auto run = start(
      "run", {"--world-size", "2", "--max-steps", "4", "--bucket-kib", "1", "--method", "int4"});
  ASSERT_EQ(run->wait(kLong), 0) << run->errors();
  const auto steps = events_named(run->output(), "step");
  const auto timelines = events_named(run->output(), "timeline");
  ASSERT_EQ(timelines.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(field(timelines[i], "step"), field(steps[i], "step"));
    const auto end = static_cast<int64_t>(1000 * std::stod(field(steps[i], "step_ms"))) + 1;
    const auto buckets = rows_of_numbers(timelines[i], "buckets_us");
    ASSERT_GE(buckets.size(), 3u) << timelines[i];  // 8 kB of parameters and more, 1 KiB each
    for (const auto& b : buckets) {
      ASSERT_EQ(b.size(), 6u);
      const std::vector<int64_t> times{0, b[0], b[1], b[2], b[3], end};
      EXPECT_TRUE(std::is_sorted(times.begin(), times.end())) << timelines[i];
    }
  }
}

TEST_F(Trainer, AFolderWithoutFilesIsARunErrorThatListsThem) {
  const auto run = start("run", {"--data", folder_.file("nothing")});
  EXPECT_EQ(run->wait(kLong), 1);
  EXPECT_NE(run->errors().find("gradwire-trainer: rank 0: "), std::string::npos) << run->errors();
  EXPECT_NE(run->errors().find("t10k-labels-idx1-ubyte"), std::string::npos) << run->errors();
  const auto errors = events_named(run->output(), "error");
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(field(errors[0], "kind"), "invalid_argument");
}

TEST_F(Trainer, TooFewExamplesEndAllRanksWithTheNumbers) {
  const auto run = start("run", {"--world-size", "3", "--batch-size", "200"});
  EXPECT_EQ(run->wait(kLong), 1);
  EXPECT_NE(run->errors().find("320 training examples for 3 ranks"), std::string::npos)
      << run->errors();
}

TEST_F(Trainer, ABatchBeyondTheExamplesIsRefusedBeforeTheModelIsBuilt) {
  // Activations of 275 GB, which would be refused first.
  const auto run =
      start("run", {"--world-size", "1", "--batch-size", "1048576", "--hidden", "65536,1,65536,1"});
  EXPECT_EQ(run->wait(kLong), 1);
  EXPECT_NE(run->errors().find("320 training examples for 1 ranks with batches of 1048576"),
            std::string::npos)
      << run->errors();
}

TEST_F(Trainer, AModelBeyondTheMemoryIsRefusedWithItsSize) {
  if (kSlower > 1) {
    GTEST_SKIP() << "the sanitizer's allocator ends the process instead of throwing bad_alloc";
  }
  std::string widths = "65536";  // times 20000: more bytes than addresses
  for (int i = 1; i < 20000; ++i) {
    widths += ",65536";
  }
  const auto run = start("run", {"--world-size", "2", "--hidden", widths});
  EXPECT_EQ(run->wait(kLong), 1);
  EXPECT_NE(run->errors().find("a model of 85896366129156 parameters"), std::string::npos)
      << run->errors();
  EXPECT_EQ(run->errors().find("bad_alloc"), std::string::npos) << run->errors();
}

TEST_F(Trainer, ATraceThatCannotBeWrittenIsARunErrorAndLeavesTheDevice) {
  std::filesystem::create_symlink("/dev/full", folder_.file("trace.json"));
  const auto run = start("run", {"--world-size", "2", "--max-steps", "2", "--chrome-trace",
                                 folder_.file("trace.json")});
  EXPECT_EQ(run->wait(kLong), 1);
  EXPECT_NE(run->errors().find("cannot write to '" + folder_.file("trace.json")), std::string::npos)
      << run->errors();
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.file("trace.json")));
}

TEST_F(Trainer, BadArgumentsExitWith2) {
  const auto run = start("run", {"--epohcs", "3"});
  EXPECT_EQ(run->wait(kLong), 2);
  EXPECT_NE(run->errors().find("unknown option '--epohcs', known: --help"), std::string::npos)
      << run->errors();
  EXPECT_EQ(run->output(), "");
}

TEST_F(Trainer, DivergenceEndsWithAnErrorAndNotWithNumbers) {
  const auto run = start("run", {"--world-size", "2", "--epochs", "50", "--learning-rate", "1e30",
                                 "--warmup-steps", "0"});
  EXPECT_EQ(run->wait(kLong), 1);
  const auto errors = events_named(run->output(), "error");
  ASSERT_FALSE(errors.empty());
  EXPECT_EQ(field(errors[0], "kind"), "non_finite_gradient") << errors[0];
}

TEST_F(Trainer, StopsPromptlyOnSignals) {
  for (const int signal : {SIGTERM, SIGINT}) {
    SCOPED_TRACE(signal);
    const auto run = start("run", {"--world-size", "2", "--epochs", "1000000"});
    ASSERT_TRUE(has_trained(*run, 3)) << run->errors();
    run->send(signal);
    EXPECT_EQ(run->wait(kPrompt), 128 + signal) << run->errors();
    const auto errors = events_named(run->output(), "error");
    ASSERT_EQ(errors.size(), 2u);
    EXPECT_EQ(field(errors[0], "kind"), "interrupted");
  }
}

#if GRADWIRE_WITH_GLOO

TEST_F(Trainer, LearnsWithRanksAsProcesses) {
  const auto ranks = start_ranks(3, {"--epochs", "8", "--method", "topk:5%"});
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank->wait(kLong), 0) << rank->errors();
    EXPECT_EQ(events_named(rank->output(), "start").size(), 1u);
    EXPECT_EQ(events_named(rank->output(), "done").size(), 1u);
  }
  expect_trained(ranks[0]->output(), 48);
  EXPECT_TRUE(events_named(ranks[1]->output(), "step").empty());
}

TEST_F(Trainer, ThreadsAndProcessesEndWithTheSameParameters) {
  const std::vector<std::string> options = {"--epochs", "2", "--method", "int4"};
  const auto ranks = start_ranks(2, options);
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank->wait(kLong), 0) << rank->errors();
  }
  std::vector<std::string> threads = options;
  threads.insert(threads.end(), {"--world-size", "2"});
  const auto run = start("run", threads);
  ASSERT_EQ(run->wait(kLong), 0) << run->errors();
  EXPECT_EQ(field(events_named(run->output(), "epoch").at(1), "parameter_hash"),
            field(events_named(ranks[0]->output(), "epoch").at(1), "parameter_hash"));
}

TEST_F(Trainer, AKilledRankEndsTheOthersAtOnce) {
  const auto ranks = start_ranks(3, {"--epochs", "1000000", "--timeout-s", "60"});
  ASSERT_TRUE(has_trained(*ranks[0], 5)) << ranks[0]->errors();
  ranks[1]->send(SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  for (const int r : {0, 2}) {
    SCOPED_TRACE(r);
    EXPECT_EQ(ranks[r]->wait(kPrompt), 1);
    const auto errors = events_named(ranks[r]->output(), "error");
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_EQ(field(errors[0], "kind"), "transport");
    EXPECT_NE(field(errors[0], "message").find("rank "), std::string::npos) << errors[0];
    EXPECT_NE(ranks[r]->errors().find("gradwire-trainer: rank " + std::to_string(r) + ": "),
              std::string::npos)
        << ranks[r]->errors();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - killed, kPrompt);
}

TEST_F(Trainer, ARankThatCannotReadItsDataEndsTheOthersAtOnce) {
  const auto good = start_rank(0, 2, {"--timeout-s", "60"});
  const auto bad = start_rank(1, 2, {"--timeout-s", "60", "--data", folder_.file("nothing")});
  EXPECT_EQ(bad->wait(kLong), 1);
  EXPECT_EQ(good->wait(kPrompt), 1);
  EXPECT_NE(good->errors().find("rank 1"), std::string::npos) << good->errors();
}

TEST_F(Trainer, RanksWithDifferentMethodsFindOut) {
  const auto first = start_rank(0, 2, {"--method", "int4"});
  const auto second = start_rank(1, 2, {"--method", "int8"});
  EXPECT_EQ(first->wait(kLong), 1);
  EXPECT_EQ(second->wait(kLong), 1);
  EXPECT_NE(first->errors().find("int8"), std::string::npos) << first->errors();
}

TEST_F(Trainer, RanksWithDifferentOptionsSayWhichAndEnd) {
  struct Case {
    std::string option, value0, value1;
  };
  for (const auto& [option, value0, value1] :
       {Case{"--batch-size", "32", "16"}, Case{"--max-steps", "3", "4"},
        Case{"--eval-every", "2", "3"}, Case{"--learning-rate", "0.05", "0.050000001"},
        Case{"--no-exchange", "0", "1"}}) {
    SCOPED_TRACE(option);
    std::filesystem::remove_all(folder_.file("store"));
    const std::vector<std::string> common = {"--epochs", "1000000", "--timeout-s", "60"};
    const auto with = [&](const std::string& value) {
      std::vector<std::string> all = common;
      all.insert(all.end(), {option, value});
      return all;
    };
    const auto first = start_rank(0, 2, with(value0)), second = start_rank(1, 2, with(value1));
    const std::string message = "rank 1 runs with " + option + " " + value1 + ", rank 0 with " +
                                option + " " + value0 + ": expected the same on all ranks";
    for (const auto& [rank, process] : {std::pair(0, first.get()), std::pair(1, second.get())}) {
      EXPECT_EQ(process->wait(kPrompt), 1);
      const std::string notice =
          rank == 0 ? "gradwire-trainer: gloo: no job secret: a plain digest finds control frames "
                      "that were damaged, and none that were forged\n"
                    : "";
      EXPECT_EQ(process->errors(),
                notice + "gradwire-trainer: rank " + std::to_string(rank) + ": " + message + "\n");
      EXPECT_TRUE(events_named(process->output(), "step").empty());
    }
  }
}

TEST_F(Trainer, RanksWithDifferentDataSaySoAndEnd) {
  const idx_files::Folder other;
  idx_files::write_quadrants(other, "train", 320, 3);
  idx_files::write_quadrants(other, "t10k", 90, 2);
  const auto first = start_rank(0, 2, {});
  const auto second = start_rank(1, 2, {"--data", other.path()});
  for (Process* process : {first.get(), second.get()}) {
    EXPECT_EQ(process->wait(kPrompt), 1);
    EXPECT_NE(process->errors().find("rank 1 runs with data: 320 train examples, 90 test examples"),
              std::string::npos)
        << process->errors();
  }
}

TEST_F(Trainer, StopsPromptlyWhileItWaitsForOtherRanks) {
  const auto lonely = start_rank(0, 2, {"--timeout-s", "60"});
  std::this_thread::sleep_for(std::chrono::milliseconds(300) * kSlower);
  EXPECT_EQ(lonely->wait(Seconds(0)), std::nullopt) << lonely->errors();
  lonely->send(SIGTERM);
  EXPECT_EQ(lonely->wait(kPrompt), 143) << lonely->errors();
  EXPECT_EQ(events_named(lonely->output(), "error").size(), 1u);
}

#endif

}  // namespace
}  // namespace trainer_runs
