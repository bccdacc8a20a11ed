#pragma once
// Ranks as threads of one process: messages are copied straight from the sender's buffer into the
// receiver's.

#include <memory>
#include <vector>

#include "gradwire/comm/point_to_point.h"

namespace gradwire {

/// Engines of one group; element r is rank r's. Each may be used from several threads at once. A
/// rank whose engine is destroyed has left: peers that still wait for it fail.
std::vector<std::unique_ptr<PointToPoint>> make_in_process_engines(int world_size);

}  // namespace gradwire
