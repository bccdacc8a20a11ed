// Runs the tests of kernels on the first GPU; without one it says so and runs none.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <iostream>
#include <new>

#include "gradwire/kernels/core/stream.h"
#include "tests/simt/device.h"

namespace gradwire::testing {

void* allocate_managed(size_t bytes) {
  void* data = nullptr;
  if (bytes > 0 && cudaMallocManaged(&data, bytes) != cudaSuccess) {
    throw std::bad_alloc();
  }
  return data;
}

void deallocate_managed(void* data) noexcept {
  if (cudaFree(data) != cudaSuccess) {
    std::cerr << "cudaFree failed: an earlier kernel broke the device\n";
  }
}

}  // namespace gradwire::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (gradwire::cuda::device_count() == 0 && !::testing::GTEST_FLAG(list_tests)) {
    std::cout << "[  SKIPPED ] all tests of gpu_test: needs a GPU: "
              << gradwire::cuda::unavailable_reason() << "\n";
    return 0;
  }
  return RUN_ALL_TESTS();
}
