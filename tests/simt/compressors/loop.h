#pragma once
// A training loop's share of compression in device memory.

#include <memory>
#include <string>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/compress/device_state.h"
#include "tests/simt/support.h"

namespace gradwire::testing {

inline constexpr uint64_t kLoopSeed = 7;
inline constexpr Device kGpu = kEmulated;

/// Two residual buffers, passed in the same order every step.
struct Loop {
  explicit Loop(const std::string& spec, size_t numel)
      : state(std::make_shared<DeviceState>(kGpu)),
        compressor(make_compressor(parse_spec(spec),
                                   {.numel = numel, .device = kGpu, .seed = kLoopSeed, .state = state})),
        g(numel),
        first(numel),
        second(numel),
        payload(compressor->capacity_bytes()) {}

  void set_gradient(const std::vector<float>& values) {
    stream.wait();
    std::ranges::copy(values, g.begin());
  }
  void compress(const std::vector<float>& values) {
    set_gradient(values);
    enqueue_compress();
  }
  void enqueue_compress() {
    compressor->compress({g.data(), g.size(), DType::kFloat32, kGpu}, first, second, payload,
                         context);
  }
  std::vector<std::byte> sent() {
    stream.wait();
    return {payload.begin(),
            payload.begin() + static_cast<ptrdiff_t>(payload_bytes({payload.host(), 32}))};
  }
  std::vector<float> committed() {
    const DeviceArray<float>& buffer = state->read(stream).parity == 0 ? first : second;
    return {buffer.begin(), buffer.end()};
  }

  TestStream stream;
  Workspace workspace{kGpu};
  Context context{stream, workspace};
  std::shared_ptr<DeviceState> state;
  std::unique_ptr<Compressor> compressor;
  DeviceArray<float> g, first, second;
  DeviceArray<std::byte> payload;
};

}  // namespace gradwire::testing
