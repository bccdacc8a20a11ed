// The default stream is of the GPU that is current: every call about a stream makes its GPU current first
// and the earlier one again. The CUDA sources over a runtime that notes which GPU was current.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/external_stream.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/stream.h"

namespace {

int current = 0;
std::vector<std::string> calls;  // "cudaFreeAsync on 1"

cudaError_t note(const char* call) {
  calls.push_back(std::string(call) + " on " + std::to_string(current));
  return cudaSuccess;
}

cudaError_t give(void** data, size_t bytes) {
  *data = std::malloc(bytes);
  return cudaSuccess;
}

}  // namespace

extern "C" {
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 2;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of this test"; }
cudaError_t cudaDeviceSynchronize() { return note("cudaDeviceSynchronize"); }
cudaError_t cudaMalloc(void** data, size_t bytes) { return give(data, bytes); }
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemset(void*, int, size_t) { return cudaSuccess; }
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t) {
  note("cudaMallocAsync");
  return give(data, bytes);
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return note("cudaMemsetAsync"); }
cudaError_t cudaFreeAsync(void* data, cudaStream_t) {
  std::free(data);
  return note("cudaFreeAsync");
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) { return give(data, bytes); }
cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return note("cudaMemcpyAsync");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) {
  return note("cudaStreamCreateWithFlags");
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return note("cudaStreamSynchronize"); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return note("cudaStreamIsCapturing");
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned flags) {
  return note(flags == cudaEventDisableTiming ? "cudaEventCreateWithFlags, no time,"
                                              : "cudaEventCreateWithFlags");
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return note("cudaEventRecord"); }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return note("cudaStreamWaitEvent");
}
}

namespace gradwire {
namespace {

TEST(DefaultStreams, OfAnotherGpuThanTheCurrentOneAreUsedOnTheirOwn) {
  current = 0;
  calls.clear();
  const auto stream = cuda::wrap_stream(nullptr, 1);
  {
    const Buffer buffer(64, *stream);
    std::vector<std::byte> bytes(64);
    copy_bytes({buffer.data(), 64}, stream->device(), bytes, {}, *stream);
    EXPECT_FALSE(cuda::is_capturing(*stream));
    const auto event = make_event(stream->device());
    event->record(*stream);
    event->hold(*stream);
    stream->wait();
  }
  const std::vector<std::string> expected = {
      "cudaMallocAsync on 1",     "cudaMemsetAsync on 1", "cudaMemcpyAsync on 1",
      "cudaStreamIsCapturing on 1", "cudaEventCreateWithFlags, no time, on 1",
      "cudaEventRecord on 1",     "cudaStreamWaitEvent on 1", "cudaStreamSynchronize on 1",
      "cudaFreeAsync on 1"};
  EXPECT_EQ(calls, expected);
  EXPECT_EQ(current, 0);
}

}  // namespace
}  // namespace gradwire
