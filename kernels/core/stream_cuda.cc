#include "gradwire/kernels/core/external_stream.h"
#include "gradwire/kernels/core/internal/cuda_stream.h"

namespace gradwire::cuda {
namespace {

cudaStream_t new_stream(int index) {
  constexpr const char* kWhat = "cuda::make_stream";
  const DeviceScope scope(index, kWhat);
  cudaStream_t stream = nullptr;
  check_call(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), kWhat,
             "cudaStreamCreateWithFlags");
  return stream;
}

class OwnedStream final : public CudaStream {
 public:
  explicit OwnedStream(int index) : CudaStream(index, new_stream(index)) {}

  // Drains as the CPU's streams do; a failure at this point has nobody left to hear it.
  ~OwnedStream() override {
    const auto stream = static_cast<cudaStream_t>(native_handle());
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }
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

void check_device(std::string_view what, int device_index) {
  const int count = device_count();
  if (count == 0) {
    throw DeviceError(concat(what, ": no GPU: ", unavailable_reason()));
  }
  check(device_index >= 0 && device_index < count, what, ": device index is ", device_index,
        ", must be in [0, ", count, ")");
}

void wait_for_device(int device_index) {
  constexpr const char* kWhat = "cuda::wait_for_device";
  const DeviceScope scope(device_index, kWhat);
  check_call(cudaDeviceSynchronize(), kWhat, "cudaDeviceSynchronize");
}

std::unique_ptr<Stream> make_stream(int device_index) {
  check_device("cuda::make_stream", device_index);
  return std::make_unique<OwnedStream>(device_index);
}

std::unique_ptr<Stream> wrap_stream(void* native_handle, int device_index) {
  check_device("cuda::wrap_stream", device_index);
  // By its own name: elsewhere a handle of null stands for no stream at all.
  const auto stream =
      native_handle != nullptr ? static_cast<cudaStream_t>(native_handle) : cudaStreamLegacy;
  return std::make_unique<CudaStream>(device_index, stream);
}

int exchange_device(int device_index) {
  constexpr const char* kWhat = "cuda::exchange_device";
  int outer = 0;
  check_call(cudaGetDevice(&outer), kWhat, "cudaGetDevice");
  check_call(cudaSetDevice(device_index), kWhat, "cudaSetDevice");
  return outer;
}

bool is_capturing(const Stream& stream) {
  constexpr const char* kWhat = "cuda::is_capturing";
  const DeviceScope scope(stream.device().index, kWhat);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_call(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native_handle()), &status),
             kWhat, "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void exempt_thread_from_captures() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_call(cudaThreadExchangeStreamCaptureMode(&mode), "cuda::exempt_thread_from_captures",
             "cudaThreadExchangeStreamCaptureMode");
}

}  // namespace gradwire::cuda
