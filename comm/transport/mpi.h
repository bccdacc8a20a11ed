#pragma once
// The processes of one mpirun: MPI's messages, from a plug-in that is opened at first use.

#include <memory>
#include <string>

#include "gradwire/comm/transport.h"

namespace gradwire {

/// Empty when the plug-in and the MPI library it wants can be opened, else why not.
std::string mpi_unavailable_reason(const TransportOptions& options);

/// Joins the processes of MPI_COMM_WORLD, which are to be those of `options`; its store is not used.
/// Initialises MPI unless the application has (which then must have done it with
/// MPI_THREAD_MULTIPLE), and finalises it at the process's end only in the first case.
/// @throws as make_transport().
std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options);

}  // namespace gradwire
