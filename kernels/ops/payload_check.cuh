#pragma once
// What is checked of payloads before their sum is read: everything that reading relies on.

#include "gradwire/kernels/ops/faults.cuh"
#include "gradwire/kernels/ops/payload_read_cuda.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/sparse_layout.cuh"

namespace gradwire::cuda {

inline constexpr unsigned kCheckThreads = 256;

/// A block per part and chunk of the group: the scales of a record.
__global__ void __launch_bounds__(kCheckThreads)
    check_records_kernel(PayloadSource s, int bits, StepWords* words) {
  const size_t chunks = (s.numel + kChunk - 1) / kChunk;
  const size_t p = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const DevicePart part = s.parts[p];
  if (!holds_chunk(part, chunk)) {
    return;
  }
  const std::byte* const record =
      part.body + (chunk - part.first_chunk) * quantized_record_bytes(kChunk, bits, s.format.block);
  const auto block = static_cast<unsigned>(s.format.block);
  int bad = 0;
  for (unsigned i = threadIdx.x; i * block < chunk_numel(s.numel, chunk); i += kCheckThreads) {
    bad |= load_word<uint32_t>(record + 4 * i) >= 0x7F800000u ? 1 : 0;
  }
  if (__syncthreads_or(bad) != 0 && threadIdx.x == 0) {
    report_fault(words, p, FaultReason::kScale);
  }
}

/// One thread: what was found is passed on, and says whether the source may be read.
__global__ void hold_payloads_kernel(PayloadSource source, PayloadSource* to, StepWords* words,
                                     PartFaults faults) {
  source.usable = (words->status & kStatusMalformed) == 0 ? 1 : 0;
  if ((words->status & kStatusNonFinite) !=
      0) {  // its codes are finite, what they stand for was not
    source.factor = NAN;
  }
  *to = source;
  if (source.usable == 0) {
    atomicCAS(&faults.step->fault, 0u, words->fault);
    atomicOr(&faults.step->status, kStatusMalformed);
  }
  if ((words->status & kStatusNonFinite) != 0) {
    atomicOr(faults.flags, kStatusNonFinite);
  }
  words->status = words->fault = 0;
}

}  // namespace gradwire::cuda
