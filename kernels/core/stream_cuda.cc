#include "gradwire/kernels/core/internal/cuda_call.h"
#include "gradwire/kernels/core/stream.h"

namespace gradwire::cuda {
namespace {

class CudaStream final : public Stream {
 public:
  explicit CudaStream(int index) : index_(index) {
    DeviceScope scope(index_, kWhat);
    check_call(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), kWhat,
               "cudaStreamCreateWithFlags");
  }

  // Drains as the CPU's streams do; a failure at this point has nobody left to hear it.
  ~CudaStream() override {
    (void)cudaStreamSynchronize(stream_);
    (void)cudaStreamDestroy(stream_);
  }

  Device device() const override { return {DeviceType::kCuda, index_}; }
  void* native_handle() const override { return stream_; }

  void enqueue(Task) override {
    throw DeviceError("CUDA stream: enqueue() takes no host task, launch on native_handle()");
  }

  void wait() override {
    check_call(cudaStreamSynchronize(stream_), "CUDA stream", "cudaStreamSynchronize");
  }

  ThreadPool& pool() override {
    throw DeviceError("CUDA stream: pool() is of CPU streams, a GPU has no threads to lend");
  }

 private:
  static constexpr const char* kWhat = "cuda::make_stream";
  const int index_;
  cudaStream_t stream_ = nullptr;
};

cudaError_t count_devices(int& count) {
  count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    count = 0;
  }
  return code;
}

}  // namespace

int device_count() {
  int count = 0;
  (void)count_devices(count);  // unavailable_reason() tells why it is 0
  return count;
}

std::string unavailable_reason() {
  int count = 0;
  const cudaError_t code = count_devices(count);
  if (code != cudaSuccess) {
    return concat("cudaGetDeviceCount failed: ", cudaGetErrorName(code), ", ",
                  cudaGetErrorString(code));
  }
  return count > 0 ? "" : "the driver reports no GPU";
}

std::unique_ptr<Stream> make_stream(int device_index) {
  const int count = device_count();
  if (count == 0) {
    throw DeviceError(concat("cuda::make_stream: no GPU: ", unavailable_reason()));
  }
  check(device_index >= 0 && device_index < count, "cuda::make_stream: device index is ",
        device_index, ", must be in [0, ", count, ")");
  return std::make_unique<CudaStream>(device_index);
}

int exchange_device(int device_index) {
  constexpr const char* kWhat = "cuda::exchange_device";
  int outer = 0;
  check_call(cudaGetDevice(&outer), kWhat, "cudaGetDevice");
  check_call(cudaSetDevice(device_index), kWhat, "cudaSetDevice");
  return outer;
}

bool is_capturing(const Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_call(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native_handle()), &status),
             "cuda::is_capturing", "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void exempt_thread_from_captures() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_call(cudaThreadExchangeStreamCaptureMode(&mode), "cuda::exempt_thread_from_captures",
             "cudaThreadExchangeStreamCaptureMode");
}

}  // namespace gradwire::cuda
