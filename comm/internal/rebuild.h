#pragma once
// Going on with the ranks that are left, from the newest committed step.

#include <cstdint>

#include "gradwire/comm/internal/bucket_pipeline.h"
#include "gradwire/comm/reducer.h"

namespace gradwire {

/// How far a rank has come.
struct Progressed {
  uint64_t committed = 0;
  uint64_t skipped = 0;
  uint64_t has_parameters = 0;

  uint64_t concluded() const { return committed + skipped; }
};

/// What the ranks that are left go on with.
struct Recovery {
  Epoch epoch;
  BucketPipeline::Links links;
  uint64_t concluded = 0;  // steps
  Reducer::Rebuilt rebuilt;
};

/// Collective among them, when nothing is on its way. Commits the last step where this rank is behind.
/// @throws TransportError and InvalidArgument as Reducer::rebuild() does: nothing has changed then.
Recovery recover(Epoch& epoch, BucketPipeline& pipeline, const Progressed& own,
                 Transport& survivors);

}  // namespace gradwire
