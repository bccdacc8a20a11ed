#pragma once
// On a GPU: what steps that are over have met, for later calls to tell.

#include "gradwire/comm/internal/bucket_pipeline.h"

namespace gradwire {

/// Of the steps that are known to be over. Waits for nothing. @throws as Reducer::wait() says.
void throw_known_faults(Epoch& epoch, BucketPipeline& pipeline);

/// Waits, and forgets values that were not finite.
void throw_faults(Epoch& epoch, BucketPipeline& pipeline);

}  // namespace gradwire
