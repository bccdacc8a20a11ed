// The memory of cuda_bench's rows, and the copy that they are measured by.
#include "bench/cuda_rows.h"

namespace gradwire::bench {
namespace {

constexpr unsigned kThreads = 256;

/// Normal numbers (Box and Muller) of standard deviation 1e-3.
__global__ void fill_normal(float* out, size_t numel, uint32_t seed) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < numel) {
    uint64_t z = (i + (uint64_t{seed} << 40)) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    const float u = (static_cast<float>(z >> 40) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(z & 0xFFFFFF) * 0x1p-24f;
    out[i] = 1e-3f * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
  }
}

__global__ void copy_kernel(const float4* source, float4* destination, size_t count) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    destination[i] = source[i];
  }
}

cudaStream_t handle(Stream& stream) { return static_cast<cudaStream_t>(stream.native_handle()); }

}  // namespace

Arena::Arena(size_t numel, Stream& stream, size_t offset) : numel_(numel), offset_(offset) {
  const auto blocks = static_cast<unsigned>((numel + kThreads - 1) / kThreads);
  for (uint32_t i = 0; i < kSets * 3; ++i) {
    memory_.emplace_back(numel * 4 + offset, kGpu);
    fill_normal<<<blocks, kThreads, 0, handle(stream)>>>(array(0, i).data(), numel, i);
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
