#include "gradwire/comm/internal/union_samples.h"

#include "gradwire/kernels/core/dtype.h"

namespace gradwire {
namespace {

size_t count_nonzero(ConstGradient values) {
  return dispatch(values.dtype, [&]<class T>() {
    size_t count = 0;
    for (const T& value : values.as<T>()) {
      count += to_float(value) != 0.0f ? 1 : 0;
    }
    return count;
  });
}

}  // namespace

void UnionSamples::look_at(size_t group, ConstGradient mean, uint32_t step) {
  constexpr size_t kRuns = 64, kRun = 1024;
  if (mean.numel == 0) {
    return;
  }
  const bool all = mean.numel <= kRuns * kRun;
  const size_t runs = all ? 1 : kRuns, stride = mean.numel / runs, length = all ? stride : kRun;
  const size_t shift = all ? 0 : step * kRun % (stride - kRun + 1);
  for (size_t run = 0; run < runs; ++run) {
    samples_[group].sent += count_nonzero(mean.subview(run * stride + shift, length));
  }
  samples_[group].elements += runs * length;
}

double UnionSamples::density(size_t group) const {
  const Sample& sample = samples_[group];
  return sample.elements == 0
             ? 0.0
             : static_cast<double>(sample.sent) / static_cast<double>(sample.elements);
}

}  // namespace gradwire
