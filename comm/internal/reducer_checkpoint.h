#pragma once
// Everything a rank keeps between steps, to a stream and back. The equation for another world size
// is in CHECKPOINT_FORMAT.md.

#include <iosfwd>

#include "gradwire/comm/internal/bucket_pipeline.h"
#include "gradwire/comm/internal/checkpoint.h"
#include "gradwire/comm/reducer.h"

namespace gradwire {

/// Between steps. On a GPU it waits. @throws InvalidArgument when the stream does not take it.
void save_checkpoint(std::ostream& out, Epoch& epoch, const Transport& transport);

struct Loaded {
  Epoch epoch;
  CheckpointHeader header;
};

/// Collective: an epoch of the same plan, as it was saved. @throws InvalidArgument, on every rank, when
/// one finds its checkpoint missing, damaged or another's.
Loaded load_checkpoint(const Reducer::OpenCheckpoint& open, const Epoch& epoch,
                       BucketPipeline& pipeline);

}  // namespace gradwire
