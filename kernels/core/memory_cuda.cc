#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/pinned.h"

#include <cstring>

#include "gradwire/kernels/core/internal/cuda_call.h"

namespace gradwire::cuda {

std::byte* allocate(size_t bytes, int device_index) {
  constexpr const char* kWhat = "cuda::allocate";
  DeviceScope scope(device_index, kWhat);
  void* data = nullptr;
  check_call(cudaMalloc(&data, bytes), kWhat, "cudaMalloc");
  // Streams are non-blocking, so nothing orders them after this memset but waiting for it.
  cudaError_t code = cudaMemsetAsync(data, 0, bytes, nullptr);
  if (code == cudaSuccess) {
    code = cudaStreamSynchronize(nullptr);
  }
  if (code != cudaSuccess) {
    (void)cudaFree(data);
  }
  check_call(code, kWhat, "cudaMemsetAsync");
  return static_cast<std::byte*>(data);
}

void deallocate(std::byte* data, int) noexcept {
  if (data != nullptr) {
    (void)cudaFree(data);  // finds the device by the address; fails only after a sticky error
  }
}

std::byte* allocate_in_order(size_t bytes, int device_index, void* native_stream) {
  constexpr const char* kWhat = "cuda::allocate_in_order";
  DeviceScope scope(device_index, kWhat);
  const auto stream = static_cast<cudaStream_t>(native_stream);
  void* data = nullptr;
  check_call(cudaMallocAsync(&data, bytes, stream), kWhat, "cudaMallocAsync");
  const cudaError_t code = cudaMemsetAsync(data, 0, bytes, stream);
  if (code != cudaSuccess) {
    (void)cudaFreeAsync(data, stream);
  }
  check_call(code, kWhat, "cudaMemsetAsync");
  return static_cast<std::byte*>(data);
}

// What fails here fails after a sticky error.
void deallocate_in_order(std::byte* data, int device_index, void* native_stream) noexcept {
  if (data == nullptr) {
    return;
  }
  int outer = device_index;
  (void)cudaGetDevice(&outer);
  (void)cudaSetDevice(device_index);
  (void)cudaFreeAsync(data, static_cast<cudaStream_t>(native_stream));
  (void)cudaSetDevice(outer);
}

std::byte* allocate_pinned(size_t bytes) {
  void* data = nullptr;
  // Portable: pinned for all GPUs, whichever is current now. Under unified addressing, which every
  // 64-bit platform has, kernels reach it at the same address.
  check_call(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "cuda::allocate_pinned",
             "cudaHostAlloc");
  std::memset(data, 0, bytes);
  return static_cast<std::byte*>(data);
}

void deallocate_pinned(std::byte* data) noexcept {
  if (data != nullptr) {
    (void)cudaFreeHost(data);  // fails only after a sticky error
  }
}

void copy(std::byte* destination, const std::byte* source, size_t bytes, int device_index,
          void* native_stream) {
  constexpr const char* kWhat = "cuda::copy";
  const DeviceScope scope(device_index, kWhat);
  check_call(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault,
                             static_cast<cudaStream_t>(native_stream)),
             kWhat, "cudaMemcpyAsync");
}

}  // namespace gradwire::cuda
