#pragma once
// A slow link in front of any engine.

#include <memory>

#include "gradwire/comm/point_to_point.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

/// Shapes what a rank sends and what it receives to `pacing`, each by a token bucket, as a tbf on
/// both ends of a link does. No extra message travels: a sender hands a message on when the bucket
/// has let its last byte through, a receiver completes one when its own bucket has, so that several
/// senders share the receiver's rate. Engines whose calls may come from several threads only.
std::shared_ptr<PointToPoint> make_paced_engine(std::shared_ptr<PointToPoint> engine,
                                                const Pacing& pacing);

}  // namespace gradwire
