#pragma once
// Received payloads on a GPU: their headers are checked there, and what passes goes into a table
// that the adding kernels read. All memory is the GPU's but the list of payloads; nothing is
// allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/device_status.h"
#include "gradwire/kernels/ops/payload_header.h"

namespace gradwire::cuda {

/// What is wrong with a part: the lower byte of StepWords::fault.
enum class FaultReason : uint8_t {
  kNone,
  kTooShort,     ///< fewer than 32 bytes
  kMagic,
  kVersion,
  kLength,       ///< the stated length is not within 32 .. the bytes there
  kFormat,
  kValues,
  kFlags,
  kFingerprint,
  kRegion,       ///< outside the group, not on chunks, or not what is merged or sliced
  kBody,         ///< its length is not what its counts or its elements give
  kScale,
  kIndex,
  kVariant,
};

/// A part that may be added up. Without chunks: there is nothing to add.
struct DevicePart {
  const std::byte* body = nullptr;
  uint64_t body_bytes = 0;
  uint32_t first_chunk = 0;  ///< of its region, in the group
  uint32_t chunks = 0;
  uint64_t numel = 0;  ///< of its region
  uint32_t flags = 0;
  uint32_t variant = 0;  ///< of its header
};

/// Which parts are wanted; the others count as if they covered nothing.
enum class PartsWanted : uint8_t {
  kAll,
  kFinite,   ///< those without kFlagNonFinite
  kFlagged,  ///< those with it
};

/// What every part has to agree with.
struct ExpectedParts {
  PayloadHeader header{};       ///< format, values, spec_fingerprint count
  uint32_t last_variant = 0;    ///< the largest that a header may have
  uint64_t group_numel = 0;
  uint64_t record_bytes = 0;    ///< of a full chunk; 0: bodies are not records of fixed length
  uint64_t tail_bytes = 0;      ///< of the group's last chunk, where it is shorter
  uint64_t region_begin = 0;    ///< every part covers at least [region_begin, region_end) ...
  uint64_t region_end = 0;
  bool region_exactly = false;  ///< ... and no more
  PartsWanted wanted = PartsWanted::kAll;
};

/// Where faults and flags go.
struct PartFaults {
  StepWords* step = nullptr;    ///< a fault sets kStatusMalformed and `fault`
  /// Device word: takes the parts' kFlagNonFinite as kStatus bit, where all are wanted.
  uint32_t* flags = nullptr;
};

/// Where a sum of finite parts says that it overflows. It costs a kernel one comparison per
/// element, while that is in a register.
struct SumFaults {
  StepWords* step = nullptr;  ///< `overflowed` becomes 1 + bucket, unless it says something already
  uint32_t* flags = nullptr;  ///< device word, takes kStatusNonFinite; null: nobody asks
  uint32_t bucket = 0;
};

/// Fills `table` (device memory, one entry per payload). A payload that fails a check is left out.
void open_parts(std::span<const std::span<const std::byte>> payloads, const ExpectedParts& expected,
                std::span<DevicePart> table, const PartFaults& faults, Stream& stream);

/// Copies the records of chunks [first_chunk, first_chunk + chunks of `numel` elements) of the one
/// part in `table` behind a header of its own at `out`; 32 zero bytes where there is no part.
struct RecordSlice {
  std::span<const DevicePart> table;
  uint64_t record_bytes = 0;
  PayloadHeader header{};  ///< of the slice; its flags come from the part
  std::byte* out = nullptr;
};
void slice_records(const RecordSlice& slice, Stream& stream);

/// The first 32 bytes of every `stride` bytes of `messages` become 0: headers that every reader
/// refuses, so that what never arrives is not mistaken for what came before.
void clear_headers(std::span<std::byte> messages, size_t stride, Stream& stream);

/// The commit of a step: parity and step move on where no status bit is set. Non-finite values
/// alone leave the step out: with `skip` they are forgotten and counted, else they stay.
void commit_step(StepWords* step, bool skip, Stream& stream);

/// status and fault become 0.
void clear_faults(StepWords* step, Stream& stream);

/// step->step = committed.
void set_step(StepWords* step, uint32_t committed, Stream& stream);

}  // namespace gradwire::cuda
