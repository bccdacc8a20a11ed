#pragma once
// A plan at work, and what goes along when another one takes its place.

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/comm/internal/bucket.h"
#include "gradwire/comm/internal/lanes.h"
#include "gradwire/comm/plan.h"

namespace gradwire {

/// A plan, its buckets as they are behind some committed step, and what they commit together.
struct Epoch {
  Plan plan;
  std::deque<Bucket> buckets;
  std::shared_ptr<DeviceState> state;  // which buffers are committed, and how many steps
  Stream* stream = nullptr;            // on a GPU: the caller's
  int ranks = 0;                       // whose residuals add up to what is not sent yet
  uint64_t changes_at = 0;             // committed steps behind which the plan's specs are others

  /// Where a parameter lies, and where it is remembered.
  struct Place {
    Bucket& bucket;
    size_t offset, numel;
    Feedback& feedback;
    Region region;

    BucketMemory& memory() const { return bucket.memory(); }
  };
  Place place(ParamId p);
  /// The same, and where its gradient is written. @throws InvalidArgument, in the name of `call`,
  /// for an unknown one.
  Place place(std::string_view call, ParamId p);
  Gradient gradient(std::string_view call, ParamId p);

  /// Steps and faults so far. On a GPU it waits.
  cuda::StepWords words() const {
    return stream == nullptr ? *state->words() : state->read(*stream);
  }
  /// On the CPU: the bucket that keeps the step from being committed, or null. All ranks find the same.
  const Bucket* first_nonfinite() const;
  /// On the CPU: the step becomes the committed one.
  void commit();
};

struct EpochStart {
  uint64_t committed = 0, skipped = 0;
  Stream* stream = nullptr;
};

/// Collective where the plan is a new one. On a GPU it waits.
Epoch make_epoch(const Plan& plan, std::span<const Lane> lanes, const EpochStart& start);

/// Residuals, velocities, estimates and what was learned, by parameter.
void carry_over(Epoch& from, Epoch& into);

/// The same plan among other ranks: residuals and velocities times `scale`, and what compressors
/// learned. `estimates`, the same on every rank: of each parameter, empty without ef21.
void carry_over_scaled(Epoch& from, Epoch& into, double scale, Bucket::Learnt learnt);
void restart_estimates(Epoch& into, std::span<const std::vector<float>> estimates);

/// Views of gradients stay valid in `into`, of the same plan.
void take_gradients(Epoch& from, Epoch& into);

}  // namespace gradwire
