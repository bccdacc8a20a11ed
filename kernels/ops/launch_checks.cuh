#pragma once
// What launchers refuse before anything is enqueued. Where memory lies cannot be asked of a
// pointer, so views say it and must agree with the stream.

#include <cmath>

#include "gradwire/kernels/ops/launch.cuh"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire::cuda {

/// Elements of one call: counts and ranks are 32 bits wide, signed ones in places.
inline constexpr size_t kMostElements = size_t{1} << 31;

inline void check_pointer(const char* op, const char* name, const void* data, size_t count,
                          size_t alignment) {
  if (count == 0) {
    return;
  }
  check(data != nullptr, op, ": ", name, " is a null pointer, must point at ", count, " elements");
  const size_t off = reinterpret_cast<uintptr_t>(data) % alignment;
  check(off == 0, op, ": ", name, "'s address modulo ", alignment, " is ", off, ", must be 0");
}

inline void check_view(const char* op, const char* name, const ConstTensorView& view,
                       const Stream& stream) {
  check_cuda_stream(op, stream);
  check(view.device == stream.device(), op, ": ", name, " is in the memory of ",
        view.device.type == DeviceType::kCuda ? "CUDA device " : "the CPU ", view.device.index,
        ", must be in that of the stream's CUDA device ", stream.device().index);
  check(view.numel <= kMostElements, op, ": ", name, " has ", view.numel,
        " elements, must have at most ", kMostElements);
  check_pointer(op, name, view.data, view.numel, size_of(view.dtype));
}

/// A view whose memory may begin at any address, as payloads do.
inline void check_bytes(const char* op, const char* name, const ConstTensorView& view,
                        const Stream& stream) {
  ConstTensorView bytes = view;
  bytes.data = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(view.data) & ~uintptr_t{3});
  check_view(op, name, bytes, stream);
}

/// A residual: `numel` elements or none.
inline void check_parity(const char* op, const char* name, const ParitySpan& span, size_t numel) {
  check(span.empty() || span.size() == numel, op, ": ", name, " has ", span.size(),
        " elements, must have ", numel, " or none");
  check_pointer(op, name, span.first.data(), span.size(), alignof(float));
  if (span.parity != nullptr) {
    check(span.second.size() == span.size(), op, ": ", name, " has ", span.second.size(),
          " elements in its second array, must have ", span.size(), " as in its first");
    check_pointer(op, name, span.second.data(), span.size(), alignof(float));
  }
}

/// The mask and counts of a selection.
inline void check_marks(const char* op, std::span<const std::byte> mask,
                        std::span<const uint32_t> counts, size_t numel) {
  const size_t chunks = (numel + kChunk - 1) / kChunk;
  check(mask.size() == chunks * (kChunk / 8), op, ": mask has ", mask.size(), " bytes, must have ",
        chunks * (kChunk / 8));
  check_pointer(op, "mask", mask.data(), mask.size(), 1);
  check(counts.size() == chunks, op, ": counts has ", counts.size(), " elements, must have ",
        chunks);
  check_pointer(op, "counts", counts.data(), counts.size(), alignof(uint32_t));
}

inline void check_scale(const char* op, float scale) {
  check(std::isfinite(scale) && scale > 0, op, ": scale is ", scale,
        ", must be positive and finite");
}

/// The words that a call reports in, and what its last block writes.
inline void check_seal(const char* op, const CallWords* call, const Seal& seal) {
  check(call != nullptr, op, ": call is null, must be words in device memory");
  check(seal.out == nullptr || (seal.call == call && seal.status != nullptr), op,
        ": the seal's call or status is not this call's, or null");
}

inline void check_workspace(const char* op, std::span<const std::byte> workspace, size_t needed) {
  check(workspace.size() >= needed, op, ": workspace has ", workspace.size(),
        " bytes, must have at least ", needed);
  check(reinterpret_cast<uintptr_t>(workspace.data()) % 16 == 0, op,
        ": workspace must begin on a multiple of 16");
}

inline void check_onto(const char* op, bool onto, size_t parts) {
  check(!onto || parts == 1, op, ": there are ", parts,
        " parts, must be 1 to be added onto what the sum holds");
}

}  // namespace gradwire::cuda
