#pragma once
// The command line. Every option is "--name value".

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bench/trainer/auto_method.h"
#include "bench/trainer/device_option.h"
#include "gradwire/comm/transport.h"
#include "gradwire/kernels/compress/spec.h"
#include "gradwire/optimizers/optimizer.h"

namespace trainer {

/// A command line that cannot be used; the program prints it and exits with 2.
class BadArguments : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Schedule : uint8_t { kConstant, kPolynomial };

struct Options {
  Options() : outer(gradwire::default_spec("diloco")) { group.world_size = 4; }

  std::string transport = "in_process";  ///< in_process: all ranks are threads of this process
  DeviceOption device;
  gradwire::TransportOptions group;
  std::string data;
  std::vector<size_t> convolutions;  ///< output channels of each; empty: a perceptron
  std::vector<size_t> hidden = {512, 512, 512, 512, 512};
  gradwire::CompressorSpec method;      ///< none where the planner chooses
  std::optional<AutoMethod> automatic;  ///< --method auto: it chooses
  std::string exchange = "auto";
  size_t bucket_kib = 1024;
  gradwire::OptimizerSpec optimizer;
  double learning_rate = 0;        ///< 0: default_learning_rate(optimizer)
  uint64_t local_steps = 1;        ///< exchanged is what so many steps of the optimizer moved
  gradwire::OptimizerSpec outer;   ///< steps on that, where local_steps is above 1
  double outer_learning_rate = 0;  ///< 0: default_outer_rate(outer)
  Schedule schedule = Schedule::kConstant;
  uint64_t warmup_steps = 20;
  size_t batch_size = 32;  ///< per rank
  uint64_t epochs = 10;
  uint64_t max_steps = 0;  ///< 0: no limit
  uint64_t seed = 1;
  double target_accuracy = 0;  ///< 0: none
  bool stop_at_target = false;
  uint64_t eval_every = 0;        ///< steps; 0: each epoch
  int threads = 0;                ///< per rank; 0: cores / ranks
  std::vector<int> compute_cpus;  ///< where forward and backward run; empty: anywhere
  int streams = 1;                ///< exchanges in flight
  bool overlap = true;
  bool exchange_gradients = true;  ///< false: compute only, each rank on its own
  std::string checkpoint;          ///< folder; empty: none
  uint64_t checkpoint_every = 0;   ///< steps; 0: each epoch
  size_t keep_checkpoints = 2;
  bool resume = false;
  std::string events;
  std::string chrome_trace;
  long die_with_parent = 0;  ///< 0: no, 1: yes, more: yes, and the parent must be this process
  bool help = false;
};

/// `arguments` without the program's name. Fills in what was left out.
/// @throws BadArguments naming the option, the value and what was expected.
Options parse_options(std::span<const char* const> arguments);

/// "50mbit", "1gbit", "800kbit" or "none" (0), in bits per second.
double parse_rate(std::string_view text);

/// --method, in canonical words where it is a spec.
std::string method_text(const Options& options);

struct ParameterGroups {
  gradwire::ParamGroup matrices, vectors;
};

/// How the optimizer treats weights and what is one-dimensional, biases. These take no weight decay
/// and no layer-wise adaptation; LARS' learning rate is meant to be multiplied by its trust
/// coefficient, so for them it is. Where the method keeps a velocity it takes the place of the
/// optimizer's momentum, but not for biases, which are not compressed and have none.
ParameterGroups parameter_groups(const Options& options);

/// Whether the optimizer takes momenta for gradients, from some step on.
bool exchanges_momenta(const Options& options);

/// What --learning-rate is when left out: found by trying on small images (README.md).
double default_learning_rate(const gradwire::OptimizerSpec& optimizer);

/// What --outer-rate is when left out: the papers', 0.7 with momentum and 1 without.
double default_outer_rate(const gradwire::OptimizerSpec& outer);

/// The text of --help.
std::string help_text();

}  // namespace trainer
