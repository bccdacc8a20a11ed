#pragma once
// A run's checkpoints: folders "step-<steps>" under one folder that all ranks reach.

#include <cstdint>
#include <functional>
#include <string>

#include "bench/trainer/network.h"
#include "bench/trainer/updates.h"
#include "gradwire/comm/transport.h"

namespace trainer {

/// How far a run has come. Steps are those of the world size and batch that it had.
struct Position {
  uint64_t steps = 0;
  uint64_t steps_per_epoch = 1;
  uint64_t world_size = 1;
  double seconds = 0;             ///< training clock
  double seconds_to_target = -1;  ///< below 0: not reached yet

  /// The steps that this would be where an epoch has `per_epoch` steps: as many whole epochs, and
  /// of the next one the same part, rounded down.
  uint64_t steps_at(uint64_t per_epoch) const;
};

/// Files are the same whether a run is on a CPU or on a GPU, and go from one to the other.
class Checkpoints {
 public:
  /// `keep`: complete ones that stay, at least 1.
  Checkpoints(std::string folder, size_t keep, gradwire::Transport& transport,
              gradwire::Context& context);

  /// Collective, between steps. Every rank writes what it keeps (rank-<r>.residuals in the
  /// Reducer's format, rank-<r>.optimizer), rank 0 also parameters, position and a plan that the
  /// planner chose; a folder has its name once all of that is on the disk, and older ones go only
  /// then. Returns the folder.
  /// @throws std::system_error naming a file that could not be written: former ones are as before.
  std::string save(const Position& position, Network& model, Updates& updates);

  /// Collective, before the first step: takes over the newest complete checkpoint. With the world
  /// size and batch that it was saved with training goes on bit for bit; with others residuals are
  /// handed on as Reducer::load() says, and rank j takes the optimizer's state of rank j mod the
  /// former world size, which is the same on all ranks but with local steps.
  /// @throws gradwire::InvalidArgument where there is none, or one is damaged or of another model
  /// or optimizer, naming the file.
  Position load(Network& model, Updates& updates);

 private:
  std::string newest() const;
  void remove_older(const std::string& latest) const;

  std::string folder_;
  size_t keep_;
  gradwire::Transport& transport_;
  gradwire::Context& context_;
};

}  // namespace trainer
