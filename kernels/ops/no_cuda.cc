// Every cuda:: operation of a build without device code, so that callers hold no #ifdef.

#include "gradwire/kernels/ops/cast_cuda.h"
#include "gradwire/kernels/ops/norms_cuda.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/select_cuda.h"
#include "gradwire/kernels/ops/sparse_add_cuda.h"
#include "gradwire/kernels/ops/sparse_cuda.h"

namespace gradwire::cuda {
namespace {

[[noreturn]] void throw_unavailable(const char* call) {
  throw DeviceError(concat(call, ": gradwire was built without CUDA kernels, configure with "
                                 "GRADWIRE_CUDA=ON and nvcc in the path"));
}

}  // namespace

void widen(ConstTensorView, std::span<float>, Stream&) { throw_unavailable("cuda::widen"); }

void narrow(std::span<const float>, TensorView, Stream&) { throw_unavailable("cuda::narrow"); }

void quantize(const QuantizeInput&, const QuantizeOutput&, Stream&) {
  throw_unavailable("cuda::quantize");
}

void dequantize(const QuantizedParts&, float, TensorView, Stream&) {
  throw_unavailable("cuda::dequantize");
}

void sums_of_squares(std::span<const float>, size_t, std::span<double>, Stream&) {
  throw_unavailable("cuda::sums_of_squares");
}

void add_in_order(std::span<const double>, double*, Stream&) {
  throw_unavailable("cuda::add_in_order");
}

size_t select_workspace_bytes(size_t) { throw_unavailable("cuda::select_workspace_bytes"); }

void select_largest(const SelectInput&, const SelectOutput&, Stream&) {
  throw_unavailable("cuda::select_largest");
}

size_t encode_sparse_workspace_bytes(size_t) {
  throw_unavailable("cuda::encode_sparse_workspace_bytes");
}

void encode_sparse(const SparseInput&, const SparseFormat&, const SparseOutput&, Stream&) {
  throw_unavailable("cuda::encode_sparse");
}

size_t sparse_workspace_bytes(size_t, size_t) {
  throw_unavailable("cuda::sparse_workspace_bytes");
}

void add_sparse(const SparseParts&, const SparseFormat&, const SparseSum&, Stream&) {
  throw_unavailable("cuda::add_sparse");
}

}  // namespace gradwire::cuda
