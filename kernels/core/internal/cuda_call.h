#pragma once
// What the CUDA sources share: the check after every runtime call, and the current device.

#include <cuda_runtime_api.h>

#include "gradwire/kernels/core/error.h"

namespace gradwire::cuda {

/// @throws DeviceError "<what>: <call> failed: <name>, <text>" unless `code` is cudaSuccess.
inline void check_call(cudaError_t code, const char* what, const char* call) {
  if (code != cudaSuccess) [[unlikely]] {
    (void)cudaGetLastError();  // a failure that is not sticky must not surface in a later call
    throw DeviceError(concat(what, ": ", call, " failed: ", cudaGetErrorName(code), ", ",
                             cudaGetErrorString(code)));
  }
}

/// Makes a GPU the calling thread's current one, and the earlier one again at the end.
class DeviceScope {
 public:
  DeviceScope(int index, const char* what) {
    check_call(cudaGetDevice(&outer_), what, "cudaGetDevice");
    changed_ = index != outer_;
    if (changed_) {
      check_call(cudaSetDevice(index), what, "cudaSetDevice");
    }
  }
  ~DeviceScope() {
    if (changed_) {
      (void)cudaSetDevice(outer_);
    }
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int outer_ = 0;
  bool changed_ = false;
};

}  // namespace gradwire::cuda
