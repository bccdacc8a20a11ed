#include "bench/trainer/options.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "gradwire/comm/exchange.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/thread_pool.h"

namespace trainer {
namespace {

using gradwire::concat;

[[noreturn]] void reject(std::string_view value, std::string_view expected) {
  throw BadArguments(concat("value is '", value, "', expected ", expected));
}

template <class T>
T parse_number(std::string_view text, T least, T most) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  // The negated form also turns NaN away.
  if (error != std::errc() || stop != end || !(value >= least && value <= most)) {
    reject(text, most == std::numeric_limits<T>::max()
                     ? concat("a number of at least ", least)
                     : concat("a number in [", least, ", ", most, "]"));
  }
  return value;
}

bool parse_switch(std::string_view text) { return parse_number<int>(text, 0, 1) == 1; }

/// "512,512": numbers from `least` to `most`.
template <class T>
std::vector<T> parse_list(std::string_view text, T least, T most) {
  std::vector<T> numbers;
  while (true) {
    const size_t comma = text.find(',');
    numbers.push_back(parse_number<T>(text.substr(0, comma), least, most));
    if (comma == std::string_view::npos) {
      return numbers;
    }
    text.remove_prefix(comma + 1);
  }
}

template <class Row>
bool has_name(std::span<const Row> rows, std::string_view name) {
  return std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return row.name == name; });
}

template <class Row>
std::string names(std::span<const Row> rows) {
  std::string all;
  for (const Row& row : rows) {
    all += concat(all.empty() ? "" : ", ", row.name);
  }
  return all;
}

void set_transport(Options& o, std::string_view text) {
  const auto rows = gradwire::transport_registry();
  if (!has_name(rows, text)) {
    reject(text, concat("one of ", names(rows)));
  }
  o.transport = text;
}

void set_exchange(Options& o, std::string_view text) {
  const auto rows = gradwire::exchange_registry();
  if (text != "auto" && !has_name(rows, text)) {
    reject(text, concat("one of auto, ", names(rows)));
  }
  o.exchange = text;
}

void set_schedule(Options& o, std::string_view text) {
  if (text != "constant" && text != "polynomial") {
    reject(text, "constant or polynomial");
  }
  o.schedule = text == "constant" ? Schedule::kConstant : Schedule::kPolynomial;
}

/// An optimizer of what local steps moved, or one whose every step is exchanged.
gradwire::OptimizerSpec parse_optimizer_of(bool local_steps, std::string_view text) {
  const gradwire::OptimizerSpec spec = gradwire::parse_optimizer(text);
  std::string known;
  for (const gradwire::OptimizerRow& row : gradwire::optimizer_registry()) {
    if ((row.exchanges == gradwire::Exchanged::kMoves) != local_steps) {
      continue;
    }
    if (row.name == spec.name) {
      return spec;
    }
    known += concat(known.empty() ? "" : ", ", row.name);
  }
  reject(text, concat(local_steps ? "an optimizer of local steps: " : "an optimizer of gradients: ",
                      known));
}

void set_optimizer(Options& o, std::string_view text) {
  o.optimizer = parse_optimizer_of(false, text);
}

void set_outer(Options& o, std::string_view text) { o.outer = parse_optimizer_of(true, text); }

void set_method(Options& o, std::string_view text) {
  o.automatic = parse_auto(text);
  o.method = o.automatic.has_value() ? gradwire::CompressorSpec{} : gradwire::parse_spec(text);
}

struct OptionRow {
  std::string_view name;
  std::string_view value;
  std::string_view help;
  void (*set)(Options&, std::string_view);
};

using View = std::string_view;
constexpr uint64_t kAnyCount = std::numeric_limits<uint64_t>::max();
constexpr double kAnyReal = std::numeric_limits<double>::max();

constexpr OptionRow kRows[] = {
    {"rank", "R", "this process's rank (with in_process all ranks run here)",
     [](Options& o, View v) { o.group.rank = parse_number<int>(v, 0, 4095); }},
    {"world-size", "N", "number of ranks [4]",
     [](Options& o, View v) { o.group.world_size = parse_number<int>(v, 1, 4096); }},
    {"transport", "NAME", "in_process (ranks are threads) or a transport of processes [in_process]",
     set_transport},
    {"device", "WHERE", "cpu, or over nccl cuda: GPU rank mod the machine's, or cuda:N [cpu]",
     [](Options& o, View v) { o.device = parse_device(v); }},
    {"store", "WHERE", "where ranks meet: file:DIR or tcp:HOST:PORT",
     [](Options& o, View v) { o.group.store = v; }},
    {"interface", "NAME", "network interface to use and to count, e.g. eth0",
     [](Options& o, View v) { o.group.network_interface = v; }},
    {"plugin", "PATH", "transport plug-in [searched beside the library]",
     [](Options& o, View v) { o.group.plugin_path = v; }},
    {"timeout-s", "S", "how long a peer may stay silent [30]",
     [](Options& o, View v) {
       o.group.timeout = std::chrono::milliseconds(
           static_cast<int64_t>(1000 * parse_number<double>(v, 0.01, 86400)));
     }},
    {"pace", "RATE", "slow the transport down to 50mbit, 1gbit, … or none [none]",
     [](Options& o, View v) { o.group.pacing.bits_per_second = parse_rate(v); }},
    {"data", "DIR",
     "folder with the four MNIST-named IDX files, plain or .gz, or CIFAR-10's data_batch_1.bin, …",
     [](Options& o, View v) { o.data = v; }},
    {"convolutions", "C,C,…",
     "channels of 3x3 convolutions before the hidden layers, each halving the image [none]",
     [](Options& o, View v) { o.convolutions = parse_list<size_t>(v, 1, 4096); }},
    {"hidden", "W,W,…", "widths of the hidden layers [512,512,512,512,512]",
     [](Options& o, View v) { o.hidden = parse_list<size_t>(v, 1, 65536); }},
    {"method", "SPEC",
     "compression, e.g. none, fp16, topk:1%, int4; auto: measured, and chosen by the planner "
     "(auto:window=20,specs=int8|topk:1%,int4) [none]",
     set_method},
    {"exchange", "NAME", "auto, dense or gather [auto]", set_exchange},
    {"bucket-kib", "KIB", "dense gradient per bucket [1024]",
     [](Options& o, View v) { o.bucket_kib = parse_number<size_t>(v, 1, size_t{1} << 22); }},
    {"optimizer", "SPEC",
     "e.g. sgd:momentum=0.9, adamw, lars, larc, lamb; without its momentum for what the method "
     "gives one; onebit-adam:freeze_step=N, onebit-lamb: the method is for momenta, behind N steps "
     "[sgd]",
     set_optimizer},
    {"learning-rate", "X", "after warm-up [by optimizer]",
     [](Options& o, View v) { o.learning_rate = parse_number<double>(v, 1e-12, kAnyReal); }},
    {"local-steps", "H",
     "each rank steps alone so often; then what that moved is exchanged and stepped on [1]",
     [](Options& o, View v) { o.local_steps = parse_number<uint64_t>(v, 1, 1000000); }},
    {"outer", "SPEC", "steps on it: diloco, diloco:preset=sparseloco, … [diloco]", set_outer},
    {"outer-rate", "X", "its learning rate [0.7, without momentum 1]",
     [](Options& o, View v) { o.outer_learning_rate = parse_number<double>(v, 1e-12, kAnyReal); }},
    {"schedule", "NAME", "constant, or polynomial decay to 0 [constant]", set_schedule},
    {"warmup-steps", "N", "linear warm-up [20]",
     [](Options& o, View v) { o.warmup_steps = parse_number<uint64_t>(v, 0, kAnyCount); }},
    {"batch-size", "B", "examples per rank and step [32]",
     [](Options& o, View v) { o.batch_size = parse_number<size_t>(v, 1, size_t{1} << 20); }},
    {"epochs", "E", "passes over the training set [10]",
     [](Options& o, View v) { o.epochs = parse_number<uint64_t>(v, 1, 1000000); }},
    {"max-steps", "N", "stop after so many steps, 0: no limit [0]",
     [](Options& o, View v) { o.max_steps = parse_number<uint64_t>(v, 0, kAnyCount); }},
    {"seed", "S", "of parameters, order and stochastic rounding [1]",
     [](Options& o, View v) { o.seed = parse_number<uint64_t>(v, 0, kAnyCount); }},
    {"target-accuracy", "A", "report when the test accuracy reaches it, 0: none [0]",
     [](Options& o, View v) { o.target_accuracy = parse_number<double>(v, 0, 1); }},
    {"stop-at-target", "0|1", "end the run there [0]",
     [](Options& o, View v) { o.stop_at_target = parse_switch(v); }},
    {"eval-every", "N", "steps between evaluations, 0: each epoch [0]",
     [](Options& o, View v) { o.eval_every = parse_number<uint64_t>(v, 0, kAnyCount); }},
    {"threads", "T", "per rank, 0: cores / ranks [0]",
     [](Options& o, View v) { o.threads = parse_number<int>(v, 0, 1024); }},
    {"compute-cpus", "C,C,…", "where a rank of one thread computes; its exchange may use all [all]",
     [](Options& o, View v) { o.compute_cpus = parse_list(v, 0, CPU_SETSIZE - 1); }},
    {"streams", "N", "exchanges in flight at once, 1 to 16 [1]",
     [](Options& o, View v) { o.streams = parse_number<int>(v, 1, 16); }},
    {"overlap", "0|1", "exchange while backward is still running [1]",
     [](Options& o, View v) { o.overlap = parse_switch(v); }},
    {"no-exchange", "0|1", "compute only: every rank trains alone (diagnostic) [0]",
     [](Options& o, View v) { o.exchange_gradients = !parse_switch(v); }},
    {"checkpoint", "DIR", "folder for checkpoints, the same for all ranks [none]",
     [](Options& o, View v) { o.checkpoint = v; }},
    {"checkpoint-every", "N", "steps between checkpoints, 0: each epoch; one more at the end [0]",
     [](Options& o, View v) { o.checkpoint_every = parse_number<uint64_t>(v, 0, kAnyCount); }},
    {"keep-checkpoints", "N", "how many stay, the newest ones [2]",
     [](Options& o, View v) { o.keep_checkpoints = parse_number<size_t>(v, 1, 1000000); }},
    {"resume", "0|1", "go on from the newest checkpoint, also with another world size or batch [0]",
     [](Options& o, View v) { o.resume = parse_switch(v); }},
    {"events", "FILE", "JSON lines, - is standard output [none]",
     [](Options& o, View v) { o.events = v; }},
    {"chrome-trace", "FILE",
     "traces of the last steps, for Perfetto: rank 0's, FILE with .rank1 beside it, … [none]",
     [](Options& o, View v) { o.chrome_trace = v; }},
    {"die-with-parent", "0|1|PID", "end when the parent does; PID: which must be the parent [0]",
     [](Options& o, View v) { o.die_with_parent = parse_number<long>(v, 0, 1L << 22); }},
};

const OptionRow& find_row(std::string_view argument) {
  std::string known = "--help";
  for (const OptionRow& row : kRows) {
    if (argument.substr(0, 2) == "--" && argument.substr(2) == row.name) {
      return row;
    }
    known += concat(", --", row.name);
  }
  throw BadArguments(concat("unknown option '", argument, "', known: ", known));
}

// What the planner chooses itself, and what leaves it nothing to choose.
void check_auto(const Options& o) {
  const auto refuse = [&](bool given, auto option, const auto& value, std::string_view why) {
    if (given) {
      throw BadArguments(concat("--", option, " is ", value, " with --method ", o.automatic->text,
                                ", which ", why, ": expected one of them"));
    }
  };
  refuse(o.exchange != "auto", "exchange", o.exchange, "chooses the exchange itself");
  refuse(o.streams != 1, "streams", o.streams, "chooses the number of streams itself");
  refuse(o.local_steps > 1, "local-steps", o.local_steps,
         "judges by what every step exchanges and takes");
  refuse(exchanges_momenta(o), "optimizer", o.optimizer.name,
         "chooses for gradients, and this optimizer exchanges momenta");
  refuse(!o.exchange_gradients, "no-exchange", 1, "has nothing to choose without an exchange");
  refuse(!o.compute_cpus.empty(), "compute-cpus", o.compute_cpus.empty() ? 0 : o.compute_cpus[0],
         "begins threads for exchanges while it runs, and these would stay there");
}

void complete(Options& o) {
  if (o.data.empty()) {
    throw BadArguments("--data is missing, expected a folder of IDX files or of CIFAR-10's");
  }
  if (o.group.rank >= o.group.world_size) {
    throw BadArguments(
        concat("--rank is ", o.group.rank, ", must be below --world-size ", o.group.world_size));
  }
  if (o.transport != "in_process" && o.group.store.empty()) {
    throw BadArguments(concat("--store is missing, expected file:DIR or tcp:HOST:PORT with ",
                              "--transport ", o.transport));
  }
  if (o.resume && o.checkpoint.empty()) {
    throw BadArguments("--checkpoint is missing, expected the folder from which to --resume");
  }
  if (!o.checkpoint.empty() && !o.exchange_gradients) {
    throw BadArguments(
        "--checkpoint is given with --no-exchange 1, expected one of them: ranks that train alone "
        "have no parameters in common");
  }
  if (o.automatic.has_value()) {
    check_auto(o);
  }
  complete_device(o);
  if (o.learning_rate == 0) {
    o.learning_rate = default_learning_rate(o.optimizer);
  }
  if (o.outer_learning_rate == 0) {
    o.outer_learning_rate = default_outer_rate(o.outer);
  }
  if (o.threads == 0) {
    o.threads = gradwire::default_threads(o.group.world_size);
  }
}

}  // namespace

double parse_rate(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bits_per_second;
  };
  constexpr std::array<Unit, 3> kUnits = {Unit{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
  if (text == "none") {
    return 0;
  }
  for (const auto& [name, factor] : kUnits) {
    if (text.ends_with(name)) {
      return factor * parse_number<double>(text.substr(0, text.size() - 4), 1e-3, 1e6);
    }
  }
  reject(text, "a rate such as 800kbit, 50mbit or 1gbit, or none");
}

double default_learning_rate(const gradwire::OptimizerSpec& optimizer) {
  const std::string_view name = optimizer.name;
  const bool lamb = name == "lamb" || name == "onebit-lamb";
  const bool adam = name == "adamw" || name == "onebit-adam";
  return name == "lars" ? 3.0 : lamb ? 0.005 : adam ? 0.001 : 0.05;
}

bool exchanges_momenta(const Options& options) {
  const std::span<const gradwire::OptimizerRow> rows = gradwire::optimizer_registry();
  return std::any_of(rows.begin(), rows.end(), [&](const gradwire::OptimizerRow& row) {
    return row.name == options.optimizer.name && row.exchanges == gradwire::Exchanged::kMomentum;
  });
}

std::string method_text(const Options& options) {
  return options.automatic.has_value() ? options.automatic->text
                                       : gradwire::to_string(options.method);
}

double default_outer_rate(const gradwire::OptimizerSpec& outer) {
  return outer.momentum == 0.0 ? 1.0 : 0.7;
}

// [groups]
ParameterGroups parameter_groups(const Options& options) {
  ParameterGroups groups{.matrices = {}, .vectors = {.weight_decay = 0.0, .adapt = false}};
  if (options.method.feedback.momentum > 0 || options.method.feedback.eta < 1) {
    groups.matrices.momentum = 0.0;
  }
  if (options.optimizer.name == "lars") {
    groups.vectors.learning_rate_scale = options.optimizer.trust_coefficient.value();
  }
  return groups;
}
// [groups-end]

Options parse_options(std::span<const char* const> arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); i += 2) {
    const std::string_view name = arguments[i];
    if (name == "--help") {
      options.help = true;
      return options;
    }
    const OptionRow& row = find_row(name);
    if (i + 1 == arguments.size()) {
      throw BadArguments(concat(name, ": the value is missing, expected ", row.value));
    }
    try {
      row.set(options, arguments[i + 1]);
    } catch (const std::runtime_error& error) {
      throw BadArguments(concat(name, ": ", error.what()));
    }
  }
  complete(options);
  return options;
}

std::string help_text() {
  std::string text =
      "gradwire-trainer --data DIR [--name value]…\n"
      "Trains a perceptron or a convolutional network on images with several ranks.\n\n";
  for (const OptionRow& row : kRows) {
    std::string left = concat("  --", row.name, " ", row.value);
    left.resize(std::max<size_t>(left.size() + 1, 28), ' ');
    text += concat(left, row.help, "\n");
  }
  return text + "\nExit codes: 0 done, 1 the run failed, 2 bad arguments, 130/143 interrupted.\n";
}

}  // namespace trainer
