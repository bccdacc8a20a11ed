#pragma once
// The Transport over any PointToPoint engine.

#include <memory>

#include "gradwire/comm/point_to_point.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

/// Takes rank, world size, timeout and pacing from `engine` and `options`. `name` is a literal.
std::unique_ptr<Transport> make_point_to_point_transport(std::string_view name,
                                                         std::shared_ptr<PointToPoint> engine,
                                                         const TransportOptions& options);

}  // namespace gradwire
