#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/internal/cuda_call.h"

namespace gradwire::cuda {
namespace {

constexpr const char* kWhat = "CUDA event";

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int index) : index_(index) {
    DeviceScope scope(index_, kWhat);
    // It orders work and takes no time, which would cost every record() a write of the clock.
    check_call(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), kWhat,
               "cudaEventCreateWithFlags");
  }
  ~CudaEvent() override { (void)cudaEventDestroy(event_); }

  Device device() const override { return {DeviceType::kCuda, index_}; }

  void record(Stream& stream) override {
    check_stream(stream);
    DeviceScope scope(index_, kWhat);
    check_call(cudaEventRecord(event_, handle_of(stream)), kWhat, "cudaEventRecord");
  }

  void hold(Stream& stream) override {
    check_stream(stream);
    DeviceScope scope(index_, kWhat);
    check_call(cudaStreamWaitEvent(handle_of(stream), event_, 0), kWhat, "cudaStreamWaitEvent");
  }

  bool passed() const override {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    check_call(code, kWhat, "cudaEventQuery");
    return true;
  }

  void wait() const override {
    check_call(cudaEventSynchronize(event_), kWhat, "cudaEventSynchronize");
  }

 private:
  static cudaStream_t handle_of(const Stream& stream) {
    return static_cast<cudaStream_t>(stream.native_handle());
  }
  void check_stream(const Stream& stream) const {
    check(stream.device() == device(), "event: the stream is of another device, must be of GPU ",
          index_, " as the event is");
  }

  const int index_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::unique_ptr<Event> make_event(int device_index) {
  const int count = device_count();
  if (count == 0) {
    throw DeviceError(concat("cuda::make_event: no GPU: ", unavailable_reason()));
  }
  check(device_index >= 0 && device_index < count, "cuda::make_event: device index is ",
        device_index, ", must be in [0, ", count, ")");
  return std::make_unique<CudaEvent>(device_index);
}

}  // namespace gradwire::cuda
