// A training step's compression on a GPU. Gradients, residuals, payloads and the commit stay in its
// memory, and nothing waits for the host. Two ranks' payloads stand in for an exchange.

#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/compress/device_state.h"

namespace {

constexpr size_t kNumel = 20'000;

}  // namespace

int main() {
  if (gradwire::cuda::device_count() == 0) {
    std::printf("skipped, there is no GPU: %s\n", gradwire::cuda::unavailable_reason().c_str());
    return 0;
  }
  const gradwire::Device gpu{gradwire::DeviceType::kCuda, 0};
  std::vector<float> constant(kNumel, 1.0f), average(kNumel);
  gradwire::Buffer gradient(kNumel * 4, gpu), mean(kNumel * 4, gpu);

  // [docs]
  auto stream = gradwire::cuda::make_stream(0);
  gradwire::Workspace workspace(*stream);
  gradwire::Context context{*stream, workspace};
  auto state = std::make_shared<gradwire::DeviceState>(gpu);  // parity, step and faults
  auto compressor = gradwire::make_compressor(gradwire::parse_spec("topk:10%,int8"),
                                              {.numel = kNumel, .device = gpu, .state = state});
  gradwire::Buffer first(kNumel * 4, gpu), second(kNumel * 4, gpu);  // residuals, zero
  gradwire::Buffer payload(compressor->capacity_bytes(), gpu);
  const gradwire::TensorView g{gradient.data(), kNumel, gradwire::DType::kFloat32, gpu};
  const gradwire::TensorView sum{mean.data(), kNumel, gradwire::DType::kFloat32, gpu};
  // [docs-end]

  gradwire::copy_bytes(gradient.bytes(), gpu, std::as_bytes(std::span(constant)), {}, *stream);
  double received = 0;
  for (int step = 0; step < 40; ++step) {
    // [step]
    compressor->compress(g, first.as<float>(), second.as<float>(), payload.bytes(), context);
    const gradwire::ConstPayload ranks[] = {payload.bytes(), payload.bytes()};  // what arrives
    compressor->decompress(ranks, 1.0f / 2, sum, context);
    state->commit(gradwire::OnNonFinite::kSkip, *stream);
    // [step-end]
    gradwire::copy_bytes(std::as_writable_bytes(std::span(average)), {}, mean.bytes(), gpu,
                         *stream);
    stream->wait();
    for (const float x : average) {
      received += x;
    }
  }
  state->check(*stream);  // throws what went wrong in any step
  // Error feedback loses nothing: all but the last few steps' sum has arrived.
  const double share = received / (40.0 * kNumel);
  std::printf("%.3f of the gradients arrived, step %u\n", share, state->read(*stream).step);
  return std::abs(share - 1) < 0.2 ? 0 : 1;
}
