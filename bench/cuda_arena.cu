// The memory of cuda_bench's rows, and the copy that they are measured by.
#include "bench/cuda_normal.h"
#include "bench/cuda_rows.h"

namespace gradwire::bench {
namespace {

constexpr unsigned kThreads = 256;

__global__ void copy_kernel(const float4* source, float4* destination, size_t count) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    destination[i] = source[i];
  }
}

cudaStream_t handle(Stream& stream) { return static_cast<cudaStream_t>(stream.native_handle()); }

}  // namespace

Arena::Arena(size_t numel, Stream& stream, size_t offset) : numel_(numel), offset_(offset) {
  const auto blocks = static_cast<unsigned>((numel + kFillThreads - 1) / kFillThreads);
  for (uint32_t i = 0; i < kSets * 3; ++i) {
    memory_.emplace_back(numel * 4 + offset, kGpu);
    fill_normal<<<blocks, kFillThreads, 0, handle(stream)>>>(array(0, i).data(), numel, i);
    check_cuda(cudaGetLastError(), "fill_normal");
  }
  stream.wait();
}

double copy_rate(const Arena& arena, Stream& stream, Timer& timer) {
  const double by_runtime = timer.median_ms(
      [&](int set) {
        check_cuda(cudaMemcpyAsync(arena.e_next(set).data(), arena.g(set).data(), arena.numel() * 4,
                                   cudaMemcpyDeviceToDevice, handle(stream)),
                   "cudaMemcpyAsync");
      },
      Launch::kGraph);
  const double by_kernel = timer.median_ms(
      [&](int set) {
        copy_kernel<<<132 * 16, kThreads, 0, handle(stream)>>>(
            reinterpret_cast<const float4*>(arena.g(set).data()),
            reinterpret_cast<float4*>(arena.e_next(set).data()), arena.numel() / 4);
        check_cuda(cudaGetLastError(), "copy_kernel");
      },
      Launch::kGraph);
  return 8.0 * static_cast<double>(arena.numel()) / (1e-3 * std::min(by_runtime, by_kernel));
}

}  // namespace gradwire::bench
