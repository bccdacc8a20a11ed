#pragma once
// The CPU's compressors as the laws see them.

#include <memory>
#include <string>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "tests/support/generators.h"

namespace gradwire::testing {

/// A compressor with its stream and workspace, called as if it were synchronous.
class CpuRig {
 public:
  explicit CpuRig(const std::string& spec, CompressorShape shape, int threads = 1)
      : compressor_(make_compressor(parse_spec(spec), std::move(shape))),
        stream_(make_inline_stream(threads)) {}

  Compressor& compressor() { return *compressor_; }
  void commit() { compressor_->commit(); }
  void set_step(uint32_t step) { compressor_->set_step(step); }
  Context context() { return {*stream_, workspace_}; }
  size_t numel() const { return compressor_->shape().numel; }

  /// The payload, cut to its true length. Residuals may be empty.
  std::vector<std::byte> compress(const OwnedTensor& g, ConstResidual e, Residual e_next) {
    std::vector<std::byte> out(compressor_->capacity_bytes(), std::byte{0x5A});
    Context c = context();
    compressor_->compress({g.bytes.data(), g.numel(), g.dtype}, e, e_next, out, c);
    stream_->wait();
    out.resize(payload_bytes(out));
    return out;
  }

  void take_first(const std::vector<std::vector<std::byte>>& payloads, float scale = 1.0f) {
    const std::vector<ConstPayload> parts(payloads.begin(), payloads.end());
    Context c = context();
    compressor_->take_first(parts, scale, c);
    stream_->wait();
  }

  std::vector<std::byte> compress_second(const OwnedTensor& g, ConstResidual e, Residual e_next) {
    std::vector<std::byte> out(compressor_->capacity_bytes(), std::byte{0x5A});
    Context c = context();
    compressor_->compress_second({g.bytes.data(), g.numel(), g.dtype}, e, e_next, out, c);
    stream_->wait();
    out.resize(payload_bytes(out));
    return out;
  }

  /// `x` becomes what is left.
  std::vector<std::byte> compress_accumulated(std::span<float> x) {
    std::vector<std::byte> out(compressor_->capacity_bytes(), std::byte{0x5A});
    Context c = context();
    compressor_->compress_accumulated(x, out, c);
    stream_->wait();
    out.resize(payload_bytes(out));
    return out;
  }

  void restore(const std::vector<std::byte>& payload, std::span<float> x) {
    Context c = context();
    compressor_->restore(payload, x, c);
    stream_->wait();
  }

  OwnedTensor decompress(const std::vector<std::vector<std::byte>>& payloads, float scale = 1.0f) {
    const std::vector<ConstPayload> parts(payloads.begin(), payloads.end());
    OwnedTensor sum = zeros(numel(), compressor_->shape().dtype);
    Context c = context();
    compressor_->decompress(parts, scale, sum.view(), c);
    stream_->wait();
    return sum;
  }

  std::vector<std::byte> slice(const std::vector<std::byte>& payload, Region region) {
    std::vector<std::byte> out(compressor_->slice_capacity_bytes(region), std::byte{0x5A});
    Context c = context();
    compressor_->slice(payload, region, out, c);
    stream_->wait();
    out.resize(payload_bytes(out));
    return out;
  }

  std::vector<std::byte> merge(const std::vector<std::vector<std::byte>>& slices, Region region,
                               float scale, Residual e_next) {
    const std::vector<ConstPayload> inputs(slices.begin(), slices.end());
    std::vector<std::byte> out(compressor_->slice_capacity_bytes(region), std::byte{0x5A});
    Context c = context();
    compressor_->merge({inputs, region, scale}, e_next, out, c);
    stream_->wait();
    out.resize(payload_bytes(out));
    return out;
  }

  std::vector<float> velocity() {
    std::vector<float> committed(numel());
    Context c = context();
    compressor_->read_velocity(committed, c);
    stream_->wait();
    return committed;
  }

  void set_velocity(const std::vector<float>& values) {
    Context c = context();
    compressor_->write_velocity(values, c);
    stream_->wait();
  }

 private:
  std::unique_ptr<Compressor> compressor_;
  std::unique_ptr<Stream> stream_;
  Workspace workspace_;
};

}  // namespace gradwire::testing
