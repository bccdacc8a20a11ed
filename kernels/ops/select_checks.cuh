#pragma once
// What launchers of selections refuse, and the memory that they hand to their kernels.

#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/select.cuh"

namespace gradwire::cuda {

inline SelectMemory select_memory(const char* op, const SelectInput& in, const SelectOutput& out,
                                  size_t most_k, const Stream& stream) {
  const size_t numel = in.g.numel;
  if (in.in_place) {
    check_cuda_stream(op, stream);
    check(in.g.dtype == DType::kFloat32 && in.e.empty(), op, ": g is ", to_string(in.g.dtype),
          " and e has ", in.e.size(), " elements, must be float32 and none where x is chosen from");
    check(numel <= kMostElements, op, ": g has ", numel, " elements, must have at most ",
          kMostElements);
  } else {
    check_view(op, "g", in.g, stream);
  }
  check_parity(op, "e", in.e, numel);
  check(numel == 0 || in.stages != nullptr || (in.k >= 1 && in.k <= most_k), op, ": k is ", in.k,
        ", must be 1 to ", most_k);
  check_parity(op, "x", out.x, numel);
  check(out.x.size() == numel, op, ": x has ", out.x.size(), " elements, must have ", numel);
  check_marks(op, out.mask, out.counts, numel);
  check(out.before.size() == out.counts.size(), op, ": before has ", out.before.size(),
        " elements, must have ", out.counts.size());
  check_pointer(op, "before", out.before.data(), out.before.size(), alignof(EntriesBefore));
  check(out.call != nullptr, op, ": call is null, must be words in device memory");
  return {in.in_place ? nullptr : static_cast<const std::byte*>(in.g.data),
          ParityPointer(in.e),
          ParityPointer(out.x),
          numel,
          static_cast<uint32_t>(in.k),
          out.mask.data(),
          out.counts.data(),
          out.before.data(),
          &out.call->flags};
}

}  // namespace gradwire::cuda
