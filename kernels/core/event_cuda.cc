#include "gradwire/kernels/core/event.h"
#include "gradwire/kernels/core/internal/cuda_call.h"

namespace gradwire::cuda {
namespace {

constexpr const char* kWhat = "CUDA event";

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int index) : index_(index) {
    DeviceScope scope(index_, kWhat);
    check_call(cudaEventCreate(&event_), kWhat, "cudaEventCreate");
  }
  ~CudaEvent() override { (void)cudaEventDestroy(event_); }

  Device device() const override { return {DeviceType::kCuda, index_}; }

  void record(Stream& stream) override {
    check_stream(stream);
    DeviceScope scope(index_, kWhat);
    check_call(cudaEventRecord(event_, handle_of(stream)), kWhat, "cudaEventRecord");
    recorded_ = true;
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

  double milliseconds_since(const Event& begin) const override {
    const auto* const other = dynamic_cast<const CudaEvent*>(&begin);
    check(other != nullptr && other->index_ == index_, "event: begin is not of GPU ", index_,
          ", must be as the event is");
    for (const CudaEvent* const event : {other, this}) {
      check(event->recorded_ && event->passed(), "event: it has not been ",
            event->recorded_ ? "passed" : "recorded", ", must be before time is taken from it");
    }
    float milliseconds = 0;
    check_call(cudaEventElapsedTime(&milliseconds, other->event_, event_), kWhat,
               "cudaEventElapsedTime");
    return milliseconds;
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
  bool recorded_ = false;
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
