#pragma once
// NCCL: verbs on the memory and the streams of one GPU per rank.

#include <memory>
#include <string>

#include "gradwire/comm/transport.h"
#include "gradwire/comm/transport/nccl_library.h"

namespace gradwire {

/// Empty when the build has CUDA, the machine a GPU, and NCCL can be opened; else why not.
std::string nccl_unavailable_reason(const TransportOptions& options);

/// Meets the other ranks in options.store; options.plugin_path is open_nccl()'s path. @throws as
/// make_transport(), and DeviceError where there is no such GPU.
std::unique_ptr<Transport> make_nccl_transport(const TransportOptions& options);

/// The same with a library opened elsewhere, which outlives the transport.
std::unique_ptr<Transport> make_nccl_transport(const NcclLibrary& library,
                                               const TransportOptions& options);

}  // namespace gradwire
