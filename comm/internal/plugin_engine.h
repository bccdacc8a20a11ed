#pragma once
// Messages through a transport's plug-in: the host's side of plugin_abi.h.

#include <memory>
#include <string>
#include <string_view>

#include "gradwire/comm/internal/plugin.h"
#include "gradwire/comm/point_to_point.h"
#include "gradwire/comm/store.h"
#include "gradwire/comm/transport.h"
#include "gradwire/comm/transport/plugin_abi.h"

namespace gradwire {

/// Opens libgradwire_<transport>.so (`options.plugin_path`, or where plugin_candidates() looks).
/// @throws InvalidArgument listing where it looked, or why it was refused.
const gradwire_plugin_table& load_plugin(std::string_view transport, PluginSymbols symbols,
                                         const TransportOptions& options);

/// Empty when load_plugin() succeeds, else what it says.
std::string plugin_unavailable_reason(std::string_view transport, PluginSymbols symbols,
                                      const TransportOptions& options);

/// Where an engine finds its peers.
struct PluginPlace {
  Store* store = nullptr;  ///< used only while the engine is made; null for engines that need none
  std::string address{};   ///< numeric, of this machine: where the peers reach it
  Deadline deadline{};
};

/// Joins the other ranks. @throws TransportError when they do not appear, what the store threw, and
/// InvalidArgument for options that the plug-in refuses.
std::shared_ptr<PointToPoint> make_plugin_engine(const gradwire_plugin_table& table,
                                                 const TransportOptions& options,
                                                 const PluginPlace& place);

}  // namespace gradwire
