#include "gradwire/comm/internal/gradient_writer.h"

#include <cstring>

#include "gradwire/kernels/ops/elementwise_cuda.h"

namespace gradwire {

GradientWriter::GradientWriter(Stream* stream) : stream_(stream) {
  if (stream != nullptr) {
    always_ = std::make_unique<DeviceState>(stream->device());
    always_->set_words({.status = cuda::kStatusNonFinite}, stream);
    workspace_ = std::make_unique<Workspace>(*stream);
  }
}

void GradientWriter::assign(Gradient to, ConstGradient from) {
  if (stream_ == nullptr) {
    std::memcpy(to.data, from.data, to.size_bytes());
  } else {
    copy_bytes({static_cast<std::byte*>(to.data), to.size_bytes()}, to.device,
               {static_cast<const std::byte*>(from.data), from.size_bytes()}, from.device,
               *stream_);
  }
}

void GradientWriter::add(Gradient sum, ConstGradient values) {
  if (stream_ == nullptr) {
    dispatch(sum.dtype, [&]<class T>() {
      const std::span<T> sums = sum.as<T>();
      const std::span<const T> addends = values.as<T>();
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i] = from_float<T>(to_float(sums[i]) + to_float(addends[i]));
      }
    });
    return;
  }
  Workspace::Frame frame(*workspace_);
  std::span<const float> addends;
  if (values.dtype == DType::kFloat32) {
    addends = values.as<float>();
  } else {
    const std::span<float> widened = frame.take<float>(values.numel);
    cuda::multiply(values, {}, {widened.data(), widened.size(), DType::kFloat32, values.device},
                   *stream_);
    addends = widened;
  }
  cuda::add_until_committed(always_->words(), 0, addends, sum, *stream_);
}

void GradientWriter::clear(Gradient gradient) {
  if (stream_ == nullptr) {
    std::memset(gradient.data, 0, gradient.size_bytes());
  } else {
    cuda::fill_after_fault(always_->words(), gradient, 0.0f, *stream_);
  }
}

}  // namespace gradwire
