#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/payload_check.cuh"
#include "gradwire/kernels/ops/sparse_add_cuda.h"

namespace gradwire::cuda {

size_t read_workspace_bytes(const ReadFormat& format, size_t numel, size_t parts) {
  return format.kind == BodyKind::kEntries ? sparse_workspace_bytes(numel, parts) : 0;
}

void hold_payloads(const HeldPayloads& held, const ReadFormat& format, PayloadSource* source,
                   Stream& stream) {
  const char* const op = "cuda::hold_payloads";
  check_cuda_stream(op, stream);
  check_scale(op, held.scale);
  check(source != nullptr && held.words != nullptr && held.faults.step != nullptr &&
            held.faults.flags != nullptr,
        op, ": source, words or faults is null, must be device memory");
  const size_t count = held.parts.size();
  check_pointer(op, "parts", held.parts.data(), count, alignof(DevicePart));
  const size_t chunks = select_chunks(held.numel);
  PayloadSource made{.parts = held.parts.data(),
                     .count = count,
                     .bodies = nullptr,
                     .places = nullptr,
                     .most_chunks = chunks,
                     .format = format,
                     .numel = held.numel,
                     .factor = held.scale,
                     .usable = 0};
  const LaunchShape each{count * chunks, kCheckThreads, stream};
  if (format.kind == BodyKind::kRecords) {
    const SparseValues values = format.format.values;
    const int bits = values == SparseValues::kSign   ? 1
                     : values == SparseValues::kInt2 ? 2
                     : values == SparseValues::kInt4 ? 4
                                                     : 8;
    GRADWIRE_LAUNCH(check_records_kernel, each, made, bits, held.words);
  } else if (format.kind == BodyKind::kEntries) {
    const SparseParts parts{.parts = held.parts,
                            .most_numel = held.numel,
                            .workspace = held.workspace,
                            .step = held.words};
    const PlacedParts placed = check_sparse(parts, format.format, stream);
    made.bodies = placed.bodies;
    made.places = placed.places;
  }
  GRADWIRE_LAUNCH(hold_payloads_kernel, (LaunchShape{1, 1, stream}), made, source, held.words,
                  held.faults);
}

}  // namespace gradwire::cuda
