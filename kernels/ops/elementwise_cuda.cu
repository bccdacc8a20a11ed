#include <algorithm>

#include "gradwire/kernels/ops/elementwise.cuh"
#include "gradwire/kernels/ops/launch_checks.cuh"

namespace gradwire::cuda {
namespace {

constexpr size_t kPerBlock = size_t{kElementwiseThreads} * kPerThread;

size_t blocks_for(size_t numel) { return (numel + kPerBlock - 1) / kPerBlock; }

}  // namespace

void multiply(ConstTensorView from, const Factor& factor, TensorView to, Stream& stream) {
  const char* const op = "cuda::multiply";
  check(from.numel == to.numel, op, ": from has ", from.numel, " elements, must have to's ",
        to.numel);
  check_view(op, "from", from, stream);
  check_view(op, "to", to, stream);
  check_pointer(op, "factor", factor.on_device, factor.on_device == nullptr ? 0 : 1,
                alignof(float));
  const LaunchShape shape{blocks_for(to.numel), kElementwiseThreads, stream};
  dispatch(from.dtype, [&]<class From>() {
    dispatch(to.dtype, [&]<class To>() {
      GRADWIRE_LAUNCH((multiply_kernel<From, To>), shape, static_cast<const std::byte*>(from.data),
                      factor, static_cast<std::byte*>(to.data), to.numel);
    });
  });
}

void fill_after_fault(const StepWords* step, TensorView x, float value, Stream& stream) {
  const char* const op = "cuda::fill_after_fault";
  constexpr size_t kMostBlocks = 1024;
  check(step != nullptr, op, ": step is null, must be device memory");
  check_view(op, "x", x, stream);
  const LaunchShape shape{std::min(blocks_for(x.numel), kMostBlocks), kElementwiseThreads, stream};
  dispatch(x.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(fill_after_fault_kernel<T>, shape, step, static_cast<std::byte*>(x.data), value,
                    x.numel);
  });
}

void add_until_committed(const StepWords* step, uint32_t committed, std::span<const float> values,
                         TensorView x, Stream& stream) {
  const char* const op = "cuda::add_until_committed";
  check(step != nullptr, op, ": step is null, must be device memory");
  check(values.size() == x.numel, op, ": values has ", values.size(), " elements, must have x's ",
        x.numel);
  check_view(op, "x", x, stream);
  const LaunchShape shape{blocks_for(x.numel), kElementwiseThreads, stream};
  dispatch(x.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(add_until_committed_kernel<T>, shape, step, committed,
                    reinterpret_cast<const std::byte*>(values.data()),
                    static_cast<std::byte*>(x.data), x.numel);
  });
}

}  // namespace gradwire::cuda
