// Arrays of the tests: what the host writes is on the device when something is launched there, and
// comes back behind it, but is not the same memory.

#include "gradwire/kernels/ops/elementwise_cuda.h"
#include "tests/simt/support.h"

namespace gradwire::testing {
namespace {

TensorView view_of(DeviceArray<float>& array) {
  return {array.data(), array.size(), DType::kFloat32, kEmulated};
}

TEST(DeviceArrays, FollowLaunchesThroughPointersTakenBefore) {
  TestStream stream;
  DeviceArray<float> from{1.0f, 2.0f, 3.0f}, to(3);
  const TensorView source = view_of(from), out = view_of(to);
  EXPECT_NE(from.host(), from.data());
  for (const float factor : {2.0f, 3.0f}) {
    from[1] = 10.0f * factor;
    cuda::multiply(source, {.value = factor}, out, stream);
    stream.wait();
    EXPECT_EQ(to, (std::vector<float>{factor, 10.0f * factor * factor, 3.0f * factor}));
  }
}

TEST(DeviceArrays, OfHostsAndDevicesAreNotTheSameMemory) {
  TestStream stream;
  DeviceArray<float> array{1.0f, 2.0f};
  const TensorView there = view_of(array);
  DeviceArray<float> copy = array;
  cuda::multiply(there, {.value = 4.0f}, there, stream);
  stream.wait();
  EXPECT_EQ(array, (std::vector<float>{4.0f, 8.0f}));
  EXPECT_EQ(copy, (std::vector<float>{1.0f, 2.0f}));
}

}  // namespace
}  // namespace gradwire::testing
