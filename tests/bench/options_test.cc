#include "bench/trainer/options.h"

#include <gtest/gtest.h>

namespace {

using trainer::BadArguments;
using trainer::Options;

Options parse(std::vector<const char*> arguments) { return trainer::parse_options(arguments); }

void expect_error(std::vector<const char*> arguments, const std::vector<std::string>& parts) {
  try {
    parse(arguments);
    ADD_FAILURE() << "accepted: " << arguments.front();
  } catch (const BadArguments& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "message: " << error.what() << "\npart: " << part;
    }
  }
}

TEST(Options, AVelocityOfTheMethodTakesThePlaceOfTheOptimizersMomentum) {
  const auto groups = [](const char* method, const char* optimizer) {
    return trainer::parameter_groups(
        parse({"--data", "d", "--method", method, "--optimizer", optimizer}));
  };
  for (const char* optimizer : {"sgd:momentum=0.8,nesterov=1", "lars:momentum=0.8"}) {
    EXPECT_EQ(groups("dgc:1%", optimizer).matrices.momentum, 0.0);
    EXPECT_EQ(groups("dgc:1%", optimizer).vectors.momentum, std::nullopt);
    EXPECT_EQ(groups("dgc:1%,momentum=0", optimizer).matrices.momentum, std::nullopt);
    EXPECT_EQ(groups("topk:1%", optimizer).matrices.momentum, std::nullopt);
    EXPECT_EQ(groups("int4,momentum=0.9", optimizer).matrices.momentum, 0.0);
    EXPECT_EQ(groups("topk:1%,ef21,eta=0.1", optimizer).matrices.momentum, 0.0);
    EXPECT_EQ(groups("topk:1%,ef21", optimizer).matrices.momentum, std::nullopt);
  }
}

TEST(Options, VectorsHaveNeitherDecayNorAdaptation) {
  const auto vectors =
      trainer::parameter_groups(parse({"--data", "d", "--optimizer", "lars:trust_coefficient=0.5"}))
          .vectors;
  EXPECT_EQ(vectors.weight_decay, 0.0);
  EXPECT_FALSE(vectors.adapt);
  EXPECT_EQ(vectors.learning_rate_scale, 0.5);
}

TEST(Options, AreAllRead) {
  const Options o = parse({"--rank",
                           "2",
                           "--world-size",
                           "3",
                           "--store",
                           "tcp:host:99",
                           "--interface",
                           "eth7",
                           "--plugin",
                           "/p.so",
                           "--timeout-s",
                           "1.5",
                           "--pace",
                           "50mbit",
                           "--data",
                           "dir",
                           "--hidden",
                           "7,8",
                           "--method",
                           "fp16",
                           "--exchange",
                           "gather",
                           "--bucket-kib",
                           "64",
                           "--optimizer",
                           "lamb:weight_decay=0.01",
                           "--learning-rate",
                           "0.25",
                           "--schedule",
                           "polynomial",
                           "--warmup-steps",
                           "4",
                           "--batch-size",
                           "16",
                           "--epochs",
                           "3",
                           "--max-steps",
                           "9",
                           "--seed",
                           "77",
                           "--target-accuracy",
                           "0.9",
                           "--stop-at-target",
                           "1",
                           "--eval-every",
                           "5",
                           "--threads",
                           "2",
                           "--compute-cpus",
                           "0,3",
                           "--streams",
                           "4",
                           "--overlap",
                           "0",
                           "--no-exchange",
                           "1",
                           "--events",
                           "-",
                           "--chrome-trace",
                           "t.json",
                           "--die-with-parent",
                           "1"});
  EXPECT_EQ(o.group.rank, 2);
  EXPECT_EQ(o.group.world_size, 3);
  EXPECT_EQ(o.group.store, "tcp:host:99");
  EXPECT_EQ(o.group.network_interface, "eth7");
  EXPECT_EQ(o.group.plugin_path, "/p.so");
  EXPECT_EQ(o.group.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(o.group.pacing.bits_per_second, 5e7);
  EXPECT_EQ(o.data, "dir");
  EXPECT_EQ(o.hidden, (std::vector<size_t>{7, 8}));
  EXPECT_EQ(o.method.name, "fp16");
  EXPECT_EQ(o.exchange, "gather");
  EXPECT_EQ(o.bucket_kib, 64u);
  EXPECT_EQ(o.optimizer.name, "lamb");
  EXPECT_EQ(o.optimizer.weight_decay, 0.01);
  EXPECT_EQ(o.learning_rate, 0.25);
  EXPECT_EQ(o.schedule, trainer::Schedule::kPolynomial);
  EXPECT_EQ(o.warmup_steps, 4u);
  EXPECT_EQ(o.batch_size, 16u);
  EXPECT_EQ(o.epochs, 3u);
  EXPECT_EQ(o.max_steps, 9u);
  EXPECT_EQ(o.seed, 77u);
  EXPECT_EQ(o.target_accuracy, 0.9);
  EXPECT_TRUE(o.stop_at_target);
  EXPECT_EQ(o.eval_every, 5u);
  EXPECT_EQ(o.threads, 2);
  EXPECT_EQ(o.compute_cpus, (std::vector<int>{0, 3}));
  EXPECT_EQ(o.streams, 4);
  EXPECT_FALSE(o.overlap);
  EXPECT_FALSE(o.exchange_gradients);
  EXPECT_EQ(o.events, "-");
  EXPECT_EQ(o.chrome_trace, "t.json");
  EXPECT_EQ(o.die_with_parent, 1);
}

TEST(Options, HaveDefaultsForAllButTheData) {
  const Options o = parse({"--data", "dir"});
  EXPECT_EQ(o.transport, "in_process");
  EXPECT_EQ(o.group.world_size, 4);
  EXPECT_EQ(o.hidden, std::vector<size_t>(5, 512));
  EXPECT_EQ(o.method.name, "none");
  EXPECT_GT(o.learning_rate, 0);
  EXPECT_GE(o.threads, 1);
  EXPECT_EQ(o.streams, 1);
  EXPECT_TRUE(o.overlap);
  EXPECT_TRUE(o.exchange_gradients);
  for (const char* optimizer : {"sgd", "lars", "lamb"}) {
    EXPECT_GT(parse({"--data", "d", "--optimizer", optimizer}).learning_rate, 0) << optimizer;
  }
}

TEST(Options, ErrorsNameOptionValueAndExpectation) {
  expect_error({"--bach-size", "3"}, {"unknown option '--bach-size'", "--batch-size", "--help"});
  expect_error({"batch-size", "3"}, {"unknown option 'batch-size'"});
  expect_error({"--data"}, {"--data", "missing", "DIR"});
  expect_error({"--seed", "1"}, {"--data is missing"});
  expect_error({"--batch-size", "0"}, {"--batch-size", "'0'", "[1, "});
  expect_error({"--batch-size", "3x"}, {"--batch-size", "'3x'"});
  expect_error({"--batch-size", ""}, {"--batch-size", "''"});
  expect_error({"--seed", "-1"}, {"--seed", "'-1'", "at least 0"});
  expect_error({"--learning-rate", "nan"}, {"--learning-rate", "'nan'"});
  expect_error({"--target-accuracy", "95"}, {"--target-accuracy", "'95'", "[0, 1]"});
  expect_error({"--overlap", "yes"}, {"--overlap", "'yes'"});
  expect_error({"--hidden", "512,,3"}, {"--hidden", "''"});
  expect_error({"--pace", "50"}, {"--pace", "'50'", "50mbit"});
  expect_error({"--pace", "mbit"}, {"--pace", "''"});
  expect_error({"--schedule", "cosine"}, {"--schedule", "'cosine'", "polynomial"});
  expect_error({"--transport", "smoke"}, {"--transport", "'smoke'", "in_process"});
  expect_error({"--exchange", "ring2"}, {"--exchange", "'ring2'", "auto", "dense", "gather"});
  expect_error({"--method", "zip"}, {"--method", "'zip'", "none", "fp16"});
  expect_error({"--optimizer", "adagrad"}, {"--optimizer", "'adagrad'", "sgd", "lamb"});
  expect_error({"--data", "d", "--world-size", "2", "--rank", "2"},
               {"--rank is 2", "--world-size 2"});
}

TEST(Options, AutoIsAMethodWithOptionsOfItsOwn) {
  const auto parsed = [](const char* text) {
    return parse({"--data", "d", "--method", text}).automatic;
  };
  EXPECT_FALSE(parsed("topk:1%").has_value());
  const auto usual = parsed("auto");
  ASSERT_TRUE(usual.has_value());
  EXPECT_EQ(usual->text, "auto");
  EXPECT_EQ(usual->window_steps, 20u);
  EXPECT_EQ(usual->specs, (std::vector<std::string>{"int8", "int4", "topk:1%,int4"}));
  const auto both = parsed("auto:window=10,specs=int8|topk:1%,int4|qsgd:1,ef");
  EXPECT_EQ(both->window_steps, 10u);
  EXPECT_EQ(both->specs, (std::vector<std::string>{"int8", "topk:1%,int4", "qsgd:1,ef"}));
  EXPECT_EQ(parsed("auto:specs=fp16")->specs, std::vector<std::string>{"fp16"});
  // The last --method counts, whichever it is.
  EXPECT_FALSE(parse({"--data", "d", "--method", "auto", "--method", "int8"}).automatic);
  const Options o = parse({"--data", "d", "--method", "auto"});
  EXPECT_EQ(o.method.name, "none");
  EXPECT_EQ(trainer::method_text(o), "auto");
  EXPECT_EQ(trainer::method_text(parse({"--data", "d", "--method", "topk:0.01"})), "topk:1%");
}

TEST(Options, AutoRefusesWhatItCannotBeGiven) {
  expect_error({"--method", "auto:speed=3"}, {"--method", "'speed'", "known: window, specs"});
  expect_error({"--method", "auto:window"}, {"'window' has no value", "window=20"});
  expect_error({"--method", "auto:specs="}, {"'specs' has no value"});
  for (const char* window : {"auto:window=1", "auto:window=1001", "auto:window=x"}) {
    expect_error({"--method", window}, {"window is '", "from 2 to 1000"});
  }
  expect_error({"--method", "auto:specs=int8|zip"}, {"--method", "'zip'"});
  expect_error({"--method", "auto:specs=dgc:1%"}, {"'dgc:1%' has a momentum"});
  expect_error({"--method", "automatic"}, {"'automatic'", "none, fp16"});
  const auto with_auto = [](const char* option, const char* value, const char* why) {
    expect_error({"--data", "d", "--method", "auto", option, value},
                 {std::string(option) + " is " + value + " with --method auto", why,
                  "expected one of them"});
  };
  with_auto("--exchange", "dense", "chooses the exchange itself");
  with_auto("--streams", "2", "chooses the number of streams itself");
  with_auto("--local-steps", "4", "what every step exchanges");
  with_auto("--optimizer", "onebit-adam", "exchanges momenta");
  with_auto("--no-exchange", "1", "nothing to choose");
  with_auto("--compute-cpus", "0", "would stay there");
}

TEST(Options, EachTransportIsListedOnce) {
  try {
    parse({"--transport", "smoke"});
    FAIL() << "accepted";
  } catch (const BadArguments& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("in_process"), message.rfind("in_process")) << message;
  }
}

TEST(Options, RatesAreInBitsPerSecond) {
  EXPECT_EQ(trainer::parse_rate("none"), 0);
  EXPECT_EQ(trainer::parse_rate("800kbit"), 8e5);
  EXPECT_EQ(trainer::parse_rate("2.5gbit"), 2.5e9);
}

TEST(Options, HelpNamesEveryOption) {
  EXPECT_TRUE(parse({"--help"}).help);
  for (const char* name : {"--rank", "--method", "--die-with-parent", "--chrome-trace", "--pace"}) {
    EXPECT_NE(trainer::help_text().find(name), std::string::npos) << name;
  }
}

}  // namespace
