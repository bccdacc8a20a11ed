#include "gradwire/comm/transport/mpi.h"

#include "gradwire/comm/internal/plugin_engine.h"
#include "gradwire/comm/transport/point_to_point_transport.h"

namespace gradwire {

std::string mpi_unavailable_reason(const TransportOptions& options) {
  return plugin_unavailable_reason("mpi", PluginSymbols::kShared, options);
}

std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options) {
  const gradwire_plugin_table& table = load_plugin("mpi", PluginSymbols::kShared, options);
  check(options.network_interface.empty(), "mpi: network_interface is '", options.network_interface,
        "', expected none: MPI chooses, Open MPI as told by mpirun --mca btl_tcp_if_include ",
        options.network_interface);
  const Deadline deadline = std::chrono::steady_clock::now() + options.timeout;
  return make_point_to_point_transport(
      "mpi", make_plugin_engine(table, options, {nullptr, {}, deadline}), options);
}

}  // namespace gradwire
