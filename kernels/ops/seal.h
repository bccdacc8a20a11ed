#pragma once
// How a kernel finishes a payload: the last of its blocks writes the header, when it is known
// whether every value was finite. One launch makes a whole payload.

#include "gradwire/kernels/ops/device_status.h"
#include "gradwire/kernels/ops/payload_header.h"

namespace gradwire::cuda {

static_assert(kStatusNonFinite == kFlagNonFinite);

/// Device memory of one compressor, all zero between its calls.
struct CallWords {
  uint32_t arrived = 0;  ///< blocks of the kernel that runs
  uint32_t flags = 0;    ///< kStatus bits of this call
};

/// What is written where. As a kernel argument it travels by value.
struct Seal {
  PayloadHeader header{};      ///< of a finite gradient, `bytes` included
  std::byte* out = nullptr;    ///< 32 bytes at any address; null: no header is written
  CallWords* call = nullptr;   ///< device memory
  uint32_t* status = nullptr;  ///< device word, StepWords::status: takes over the call's flags
};

}  // namespace gradwire::cuda
