// The trainer's loop on GPUs: ranks are threads over the stand-in for NCCL, kernels are emulated.
// It learns as on the CPU, nothing in a step waits, and checkpoints go from one to the other.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "bench/trainer/checkpoint.h"
#include "bench/trainer/math.h"
#include "bench/trainer/train.h"
#include "bench/trainer/updates.h"
#include "tests/bench/event_lines.h"
#include "tests/bench/idx_files.h"
#include "tests/simt/reducer/device_ranks.h"

namespace gradwire::test {
namespace {

using trainer_runs::events_named;
using trainer_runs::field;
using Arguments = std::vector<std::string>;

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

trainer::Options parsed(const Arguments& arguments) {
  std::vector<const char*> words;
  for (const std::string& argument : arguments) {
    words.push_back(argument.c_str());
  }
  return trainer::parse_options(words);
}

class TrainerOnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_nccl().reset();
    idx_files::write_quadrants(folder_, "train", 160, 1);
    idx_files::write_quadrants(folder_, "t10k", 44, 2);
  }
  void TearDown() override {
    EXPECT_EQ(fake_nccl().alive, 0) << "communicators are left";
    EXPECT_EQ(fake_nccl().misuses, 0);
  }

  Arguments arguments(const Arguments& more) const {
    return with({"--data", folder_.path(), "--hidden", "24", "--batch-size", "16", "--threads", "1",
                 "--world-size", "2", "--warmup-steps", "5"},
                more);
  }

  /// What rank r trains with, over its transport, and what it writes.
  using MakeTransport = std::function<std::unique_ptr<Transport>(const trainer::Options&)>;
  std::string train_ranks(const std::vector<trainer::Options>& options, const MakeTransport& make) {
    const trainer::DataFolder data = trainer::load_folder(folder_.path());
    const trainer::SignalWatch signals([](std::string_view) {});
    ends_ = run_threads(static_cast<int>(options.size()), [&](int r) {
      const trainer::Options& own = options[static_cast<size_t>(r)];
      const auto transport = make(own);
      trainer::EventWriter events(folder_.file(concat("events", r)));
      trainer::train({own, data, *transport, events, signals});
    });
    return subprocess::read_file(folder_.file("events0"));
  }

  std::string on_gpus(const Arguments& more) {
    static const NcclLibrary library = transport_test::make_fake_nccl();
    std::filesystem::remove_all(folder_.file("store"));
    std::vector<trainer::Options> options;
    for (int r = 0; r < 2; ++r) {
      options.push_back(parsed(with(
          arguments(more), {"--device", "cuda", "--transport", "nccl", "--rank", std::to_string(r),
                            "--store", "file:" + folder_.file("store"), "--interface", "lo"})));
      EXPECT_EQ(options.back().group.nccl.device_index, r);
    }
    return train_ranks(options, [&](const trainer::Options& own) {
      return make_nccl_transport(library, own.group);
    });
  }

  std::string on_cpus(const Arguments& more) {
    std::vector<trainer::Options> options;
    for (int r = 0; r < 2; ++r) {
      options.push_back(parsed(with(arguments(more), {"--rank", std::to_string(r)})));
    }
    auto group = make_in_process_group(2, options[0].group);
    return train_ranks(options, [&](const trainer::Options& own) {
      return std::move(group[static_cast<size_t>(own.group.rank)]);
    });
  }

  void expect_fine() const { EXPECT_EQ(first_message(ends_), ""); }

  idx_files::Folder folder_;
  std::vector<RankEnd> ends_;
};

double number(const std::string& line, const std::string& key) {
  return std::stod(field(line, key));
}

std::string last_hash(const std::string& events) {
  return field(events_named(events, "epoch").back(), "parameter_hash");
}

// Each step once, in order, with what the host knows of it.
void expect_steps(const std::string& events, size_t first, size_t last) {
  const auto steps = events_named(events, "step");
  ASSERT_EQ(steps.size(), last + 1 - first);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(field(steps[i], "step"), std::to_string(first + i));
    EXPECT_GT(number(steps[i], "step_ms"), 0);
    EXPECT_EQ(field(steps[i], "compute_ms"), "null");
    EXPECT_GT(number(steps[i], "bytes_sent"), 0);
  }
  EXPECT_TRUE(events_named(events, "timeline").empty());
}

TEST_F(TrainerOnAGpu, LearnsWhatTheCpuLearns) {
  for (const Arguments& job :
       {Arguments{"--method", "none", "--optimizer", "sgd:momentum=0.9"},
        Arguments{"--method", "topk:10%,int4", "--optimizer", "lamb", "--convolutions", "3"},
        Arguments{"--method", "int8", "--exchange", "two_shot", "--optimizer", "adamw",
                  "--learning-rate", "0.01", "--streams", "2"}}) {
    SCOPED_TRACE(testing::PrintToString(job));
    const Arguments all = with(job, {"--epochs", "8"});  // of 5 steps
    const std::string on_cpu = on_cpus(all);
    expect_fine();
    const std::string on_gpu = on_gpus(all);
    expect_fine();
    expect_steps(on_gpu, 1, 40);
    const auto cpu_steps = events_named(on_cpu, "step"), gpu_steps = events_named(on_gpu, "step");
    for (size_t i = 0; i < 3; ++i) {  // behind these compressed gradients part
      EXPECT_NEAR(number(gpu_steps[i], "loss"), number(cpu_steps[i], "loss"), 1e-4) << "step " << i;
    }
    EXPECT_GT(number(events_named(on_cpu, "done")[0], "final_accuracy"), 0.9);
    EXPECT_GT(number(events_named(on_gpu, "done")[0], "final_accuracy"), 0.9);
    for (const std::string& epoch : events_named(on_gpu, "epoch")) {
      EXPECT_EQ(field(epoch, "hashes_equal"), "true") << epoch;
    }
  }
}

TEST_F(TrainerOnAGpu, TellsOfStepsInGroups) {
  // One epoch of 5 steps, then 20 more without an evaluation in between.
  const std::string events =
      on_gpus({"--max-steps", "25", "--batch-size", "2", "--eval-every", "1000"});
  expect_fine();
  expect_steps(events, 1, 25);
  const auto steps = events_named(events, "step");
  EXPECT_EQ(field(steps[0], "step_ms"), field(steps[15], "step_ms"));
  EXPECT_NE(field(steps[15], "step_ms"), field(steps[16], "step_ms"));
  EXPECT_EQ(field(steps[16], "step_ms"), field(steps[24], "step_ms"));
}

TEST_F(TrainerOnAGpu, CheckpointsGoToTheCpuAndBack) {
  const Arguments job = {"--method", "topk:20%", "--optimizer", "adamw", "--learning-rate", "0.01"};
  const auto until = [&](const char* steps, const char* folder, bool resume) {
    return with(job, {"--max-steps", steps, "--checkpoint", folder_.file(folder), "--resume",
                      resume ? "1" : "0"});
  };
  const std::string whole = on_gpus(until("20", "whole", false));
  expect_fine();
  // With the same ranks a run on GPUs goes on bit for bit.
  on_gpus(until("10", "gpu", false));
  expect_fine();
  std::filesystem::copy(folder_.file("gpu"), folder_.file("both"),
                        std::filesystem::copy_options::recursive);
  const std::string rest = on_gpus(until("20", "gpu", true));
  expect_fine();
  expect_steps(rest, 11, 20);
  EXPECT_EQ(last_hash(rest), last_hash(whole));
  // Onto the CPU, and back.
  const std::string on_cpu = on_cpus(until("15", "both", true));
  expect_fine();
  EXPECT_EQ(field(events_named(on_cpu, "start")[0], "resumed_at"), "10");
  const auto expected = events_named(rest, "step");
  const auto found = events_named(on_cpu, "step");
  ASSERT_EQ(found.size(), 5u);
  EXPECT_NEAR(number(found[0], "loss"), number(expected[0], "loss"), 1e-5);
  EXPECT_NEAR(number(found[1], "loss"), number(expected[1], "loss"), 1e-3);
  const std::string back = on_gpus(until("20", "both", true));
  expect_fine();
  expect_steps(back, 16, 20);
  EXPECT_NEAR(number(events_named(back, "evaluate").back(), "loss"),
              number(events_named(whole, "evaluate").back(), "loss"), 0.02);
}

TEST_F(TrainerOnAGpu, FilesOfTheCpuAreReadAndWrittenToTheByte) {
  const Arguments job = {"--method",     "topk:20%",
                         "--optimizer",  "adamw:state=8bit,min_8bit_size=64",
                         "--checkpoint", folder_.file("saved"),
                         "--max-steps",  "7"};
  on_cpus(job);
  expect_fine();
  const trainer::Options options = parsed(arguments(job));
  on_every_gpu(2, [&](NcclRank self) {
    const auto math = trainer::make_math(self.stream());
    trainer::Network model({.image = {1, 8, 8}, .hidden = {24}, .classes = 4}, 16, *math);
    trainer::Updates updates(options, *self.transport, model, self.context);
    updates.join();
    trainer::Checkpoints from(folder_.file("saved"), 1, *self.transport, self.context);
    trainer::Checkpoints to(folder_.file("again"), 1, *self.transport, self.context);
    const trainer::Position position = from.load(model, updates);
    EXPECT_EQ(position.steps, 7u);
    to.save(position, model, updates);
  });
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.file("saved/step-7"))) {
    const std::string name = entry.path().filename().string();
    const std::string written = subprocess::read_file(folder_.file("again/step-7/" + name));
    EXPECT_TRUE(subprocess::read_file(entry.path().string()) == written) << name;
    ++files;
  }
  EXPECT_EQ(files, 5u);  // parameters, and of each rank two
}

TEST_F(TrainerOnAGpu, NothingInAStepWaits) {
  const trainer::Options options = parsed(arguments({"--method", "topk:10%,int8"}));
  const trainer::DataFolder data = trainer::load_folder(folder_.path());
  const trainer::Standardiser standardise(data.train);
  on_every_gpu(2, [&](NcclRank self) {
    const auto math = trainer::make_math(self.stream());
    trainer::Network model({.image = {1, 8, 8}, .convolutions = {2}, .hidden = {9}, .classes = 4},
                           16, *math);
    model.initialise(1);
    trainer::Updates updates(options, *self.transport, model, self.context);
    updates.join();
    const auto examples = math->examples(data.train, standardise, 16);
    trainer::BatchSampler sampler({160, 16, 2, 1}, static_cast<size_t>(self.rank));
    const auto steps = [&](uint64_t begin, uint64_t end) {
      for (uint64_t step = begin; step < end; ++step) {
        updates.begin_step();
        const auto labels = examples->take(sampler.batch(step), model.inputs());
        model.forward(labels);
        model.backward(labels, [&](ParamId p) { updates.gradient_ready(p); });
        updates.prepare();
        updates.exchange();
        updates.apply(0.01);
      }
    };
    steps(0, 10);  // scratch memory has its size then
    updates.synchronize();
    Gate gate(self.stream());
    steps(10, 10 + trainer::Network::kResults);
    gate.release();  // nothing has run so far
    updates.synchronize();
    for (const trainer::BatchResult& result : model.last_results(trainer::Network::kResults)) {
      EXPECT_TRUE(std::isfinite(result.loss));
    }
  });
}

TEST_F(TrainerOnAGpu, EndsWhereGradientsAreNotFinite) {
  on_gpus({"--method", "none", "--learning-rate", "1e30", "--warmup-steps", "0", "--epochs", "8"});
  for (const RankEnd& end : ends_) {
    EXPECT_TRUE(end.threw<NonFiniteGradient>()) << end.message;
  }
}

TEST_F(TrainerOnAGpu, ChoosesTheGpuByRankOrByNumber) {
  const auto index = [&](const Arguments& more) {
    return parsed(with({"--data", "d", "--transport", "nccl", "--store", "file:s"}, more))
        .group.nccl.device_index;
  };
  EXPECT_EQ(index({"--device", "cuda", "--rank", "1"}), 1);
  EXPECT_EQ(index({"--device", "cuda", "--rank", "11", "--world-size", "16"}),
            3);  // 8 in a machine
  EXPECT_EQ(index({"--device", "cuda:5", "--rank", "1"}), 5);
  try {
    index({"--device", "cuda:8"});
    ADD_FAILURE() << "accepted";
  } catch (const trainer::BadArguments& error) {
    EXPECT_EQ(std::string(error.what()),
              "--device is cuda:8, must be below cuda:8 on this machine");
  }
}

}  // namespace
}  // namespace gradwire::test
