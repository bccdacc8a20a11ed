#pragma once
// One rank's training run.

#include "bench/trainer/events.h"
#include "bench/trainer/images.h"
#include "bench/trainer/options.h"
#include "bench/trainer/process.h"
#include "gradwire/comm/transport.h"

namespace trainer {

/// What a rank's run needs; everything outlives it.
struct RankInputs {
  const Options& options;
  const DataFolder& data;
  gradwire::Transport& transport;
  EventWriter& events;
  const SignalWatch& signals;
};

/// Trains until the epochs, the steps or the target are reached. Blocks; all ranks of the group run
/// it. Whatever it throws has ended the group for every rank: the transport is aborted.
void train(const RankInputs& inputs);

}  // namespace trainer
