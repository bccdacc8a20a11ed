#pragma once
// A cudaStream_t as a Stream; whose it is, its children say.

#include <cuda_runtime_api.h>

#include "gradwire/kernels/core/internal/cuda_call.h"
#include "gradwire/kernels/core/stream.h"

namespace gradwire::cuda {

class CudaStream : public Stream {
 public:
  CudaStream(int index, cudaStream_t stream) : index_(index), stream_(stream) {}

  Device device() const override { return {DeviceType::kCuda, index_}; }
  void* native_handle() const override { return stream_; }

  void enqueue(Task) override {
    throw DeviceError("CUDA stream: enqueue() takes no host task, launch on native_handle()");
  }

  void wait() override {
    const DeviceScope scope(index_, "CUDA stream");  // default streams are the current GPU's
    check_call(cudaStreamSynchronize(stream_), "CUDA stream", "cudaStreamSynchronize");
  }

  ThreadPool& pool() override {
    throw DeviceError("CUDA stream: pool() is of CPU streams, a GPU has no threads to lend");
  }

 private:
  const int index_;
  const cudaStream_t stream_;
};

}  // namespace gradwire::cuda
