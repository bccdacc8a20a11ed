#pragma once
// TCP between processes: Gloo's pairs, from a plug-in that is opened at first use.

#include <memory>
#include <string>

#include "gradwire/comm/point_to_point.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

/// Empty when the plug-in can be opened, else where it was looked for and why it was refused.
std::string gloo_unavailable_reason(const TransportOptions& options);

/// The messages below that transport, which meets the other ranks here. @throws as make_transport().
std::shared_ptr<PointToPoint> make_gloo_engine(const TransportOptions& options);

/// Meets the other ranks in options.store. @throws as make_transport().
std::unique_ptr<Transport> make_gloo_transport(const TransportOptions& options);

}  // namespace gradwire
