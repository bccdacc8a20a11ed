// Runs the tests of kernels on the first GPU, each suite in a process of its own; without a GPU it
// says so and runs none.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <iostream>
#include <stdexcept>
#include <string>

#include "gradwire/kernels/core/stream.h"
#include "tests/simt/device.h"
#include "tests/simt/suites.h"

namespace gradwire::testing {

namespace {

void require(cudaError_t code, const char* call) {
  if (code != cudaSuccess) {
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(code));
  }
}

}  // namespace

void* allocate_on_device(size_t bytes) {
  void* data = nullptr;
  require(cudaMalloc(&data, bytes), "cudaMalloc");
  return data;
}

void deallocate_on_device(void* data) noexcept {
  if (cudaFree(data) != cudaSuccess) {
    std::cerr << "cudaFree failed: an earlier kernel broke the device\n";
  }
}

// The copy may still be under way when cudaMemcpy() returns, and the tests' stream does not wait
// for it.
void copy_to_device(void* to, const void* from, size_t bytes) {
  require(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

void copy_to_host(void* to, const void* from, size_t bytes) {
  require(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

}  // namespace gradwire::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (gradwire::cuda::device_count() == 0 && !::testing::GTEST_FLAG(list_tests)) {
    std::cout << "[  SKIPPED ] all tests of gpu_test: needs a GPU: "
              << gradwire::cuda::unavailable_reason() << "\n";
    return 0;
  }
  return gradwire::testing::run_suites_apart(argv);
}
