#pragma once
// Work that is recorded once and runs again with the same arguments: a CUDA graph on a GPU. In the
// emulator the calls are made again, which shows whether they follow what changes on the device.

#include <functional>
#include <stdexcept>
#include <utility>

#include "tests/simt/device.h"
#if defined(GRADWIRE_ON_GPU)
#include <cuda_runtime_api.h>
#endif

namespace gradwire::testing {

#if defined(GRADWIRE_ON_GPU)

class Captured {
 public:
  /// Calls `work`, which enqueues on `stream` and must neither wait nor allocate. Nothing runs yet.
  Captured(TestStream& stream, const std::function<void()>& work) : stream_(stream) {
    const cudaStream_t handle = handle_of(stream);
    require(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
    work();
    cudaGraph_t graph = nullptr;
    require(cudaStreamEndCapture(handle, &graph));
    const cudaError_t code = cudaGraphInstantiate(&graph_, graph, 0);
    (void)cudaGraphDestroy(graph);
    require(code);
  }
  ~Captured() { (void)cudaGraphExecDestroy(graph_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  void replay() { require(cudaGraphLaunch(graph_, handle_of(stream_))); }

 private:
  static cudaStream_t handle_of(const Stream& stream) {
    return static_cast<cudaStream_t>(stream.native_handle());
  }
  static void require(cudaError_t code) {
    if (code != cudaSuccess) {
      throw std::runtime_error(cudaGetErrorString(code));
    }
  }
  TestStream& stream_;
  cudaGraphExec_t graph_ = nullptr;
};

#else

class Captured {
 public:
  Captured(TestStream&, std::function<void()> work) : work_(std::move(work)) {}
  /// Memory that is taken meanwhile would have been taken in a capture, which CUDA refuses.
  void replay() {
    const uint64_t before = device_allocations();
    work_();
    EXPECT_EQ(device_allocations(), before) << "captured work takes memory";
  }

 private:
  std::function<void()> work_;
};

#endif

}  // namespace gradwire::testing
