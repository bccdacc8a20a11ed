#pragma once
// A compressor on the device of the tests, called as if it were synchronous: what the laws need.
// Everything lies between guards, payloads at odd addresses, elements at those of each call in
// turn, and every call is checked for faults.

#include <memory>
#include <string>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/compress/device_state.h"
#include "tests/simt/support.h"

namespace gradwire::testing {

class Rig {
 public:
  explicit Rig(const std::string& spec, CompressorShape shape, int = 1) {
    shape.device = kEmulated;
    shape.state = state_ = std::make_shared<DeviceState>(kEmulated);
    compressor_ = make_compressor(parse_spec(spec), std::move(shape));
  }

  Compressor& compressor() { return *compressor_; }
  DeviceState& state() { return *state_; }
  Context context() { return {stream_, workspace_}; }
  size_t numel() const { return compressor_->shape().numel; }
  void commit() { state_->commit(OnNonFinite::kError, stream_); }
  void set_step(uint32_t step) { state_->set_step(step, stream_); }

  std::vector<std::byte> compress(const OwnedTensor& g, ConstResidual e, Residual e_next) {
    return compress_with(&Compressor::compress, g, e, e_next);
  }

  void take_first(const std::vector<std::vector<std::byte>>& payloads, float scale = 1.0f) {
    Copies copies(payloads);
    Context c = context();
    compressor_->take_first(copies.parts, scale, c);
    finish();
  }

  std::vector<std::byte> compress_second(const OwnedTensor& g, ConstResidual e, Residual e_next) {
    return compress_with(&Compressor::compress_second, g, e, e_next);
  }

  std::vector<std::byte> compress_accumulated(std::span<float> x) {
    Guarded<float> memory({x.begin(), x.end()}, next_offset());
    Guarded<std::byte> out(compressor_->capacity_bytes(), 3);
    Context c = context();
    compressor_->compress_accumulated(memory.span(), out.span(), c);
    finish();
    std::ranges::copy(memory.values(), x.begin());
    EXPECT_TRUE(memory.guards_hold());
    return payload_in(out);
  }

  void restore(const std::vector<std::byte>& payload, std::span<float> x) {
    Copies copies({payload});
    Guarded<float> memory({x.begin(), x.end()}, next_offset());
    Context c = context();
    compressor_->restore(copies.parts[0], memory.span(), c);
    finish();
    std::ranges::copy(memory.values(), x.begin());
    EXPECT_TRUE(memory.guards_hold());
  }

  OwnedTensor decompress(const std::vector<std::vector<std::byte>>& payloads, float scale = 1.0f) {
    Copies copies(payloads);
    OwnedTensor sum = zeros(numel(), compressor_->shape().dtype);
    Guarded<std::byte> out(sum.bytes, next_offset(sum.dtype));
    Context c = context();
    compressor_->decompress(copies.parts, scale, {out.bytes(), numel(), sum.dtype, kEmulated}, c);
    finish();
    sum.bytes = out.values();
    EXPECT_TRUE(out.guards_hold());
    return sum;
  }

  std::vector<std::byte> slice(const std::vector<std::byte>& payload, Region region) {
    Copies copies({payload});
    Guarded<std::byte> out(compressor_->slice_capacity_bytes(region), 1);
    Context c = context();
    compressor_->slice(copies.parts[0], region, out.span(), c);
    finish();
    return payload_in(out);
  }

  std::vector<std::byte> merge(const std::vector<std::vector<std::byte>>& slices, Region region,
                               float scale, Residual e_next) {
    Copies copies(slices);
    Guarded<float> next({e_next.begin(), e_next.end()}, next_offset());
    Guarded<std::byte> out(compressor_->slice_capacity_bytes(region), 5);
    Context c = context();
    compressor_->merge({copies.parts, region, scale}, next.span(), out.span(), c);
    finish();
    std::ranges::copy(next.values(), e_next.begin());
    EXPECT_TRUE(next.guards_hold());
    return payload_in(out);
  }

  std::vector<float> velocity() {
    Guarded<float> committed(std::vector<float>(numel(), 7.0f), 4);
    Context c = context();
    compressor_->read_velocity(committed.span(), c);
    stream_.wait();
    EXPECT_TRUE(committed.guards_hold());
    return committed.values();
  }

  void set_velocity(const std::vector<float>& values) {
    Guarded<float> from(values, 8);
    Context c = context();
    compressor_->write_velocity(from.span(), c);
    stream_.wait();
  }

  /// Reports the faults of the calls before, non-finite values apart, and forgets them.
  void finish() {
    const cuda::StepWords words = state_->read(stream_);
    if ((words.status & cuda::kStatusMalformed) == 0) {
      state_->clear(stream_);
      stream_.wait();
      return;
    }
    try {
      state_->check(stream_);
    } catch (const InvalidArgument&) {
      state_->clear(stream_);
      stream_.wait();
      throw;
    }
  }

 private:
  using Compress = void (Compressor::*)(ConstGradient, ConstResidual, Residual, Payload, Context&);

  std::vector<std::byte> compress_with(Compress call, const OwnedTensor& g, ConstResidual e,
                                       Residual e_next) {
    Guarded<std::byte> gradient(g.bytes, next_offset(g.dtype));
    Guarded<float> committed({e.begin(), e.end()}, next_offset());
    Guarded<float> next({e_next.begin(), e_next.end()}, next_offset());
    Guarded<std::byte> out(compressor_->capacity_bytes(), 3);
    // The two buffers keep their order; the device's parity says which one is committed.
    const bool swapped = state_->read(stream_).parity != 0;
    Context c = context();
    ((*compressor_).*call)({gradient.bytes(), g.numel(), g.dtype, kEmulated},
                           (swapped ? next : committed).span(), (swapped ? committed : next).span(),
                           out.span(), c);
    finish();
    const std::vector<float> result = next.values();
    std::ranges::copy(result, e_next.begin());
    EXPECT_TRUE(std::ranges::equal(bits_of(committed.values()),
                                   bits_of(std::vector<float>(e.begin(), e.end()))));
    EXPECT_TRUE(gradient.guards_hold() && committed.guards_hold() && next.guards_hold());
    return payload_in(out);
  }

  /// Bytes behind a boundary of 16: for arrays one after another 0, 4, 8, 12, of 16 bits 2 more in
  /// every second round. Other arrays of a call get others in the next one.
  static size_t next_offset(DType dtype = DType::kFloat32) {
    static size_t arrays = 0;
    const size_t at = arrays++;
    return (at + at / 12) % 4 * 4 + (size_of(dtype) == 2 ? at / 4 % 2 * 2 : 0);
  }

  /// Payloads in device memory, each at an odd address of its own.
  struct Copies {
    explicit Copies(const std::vector<std::vector<std::byte>>& payloads) {
      memory.reserve(payloads.size());
      for (size_t i = 0; i < payloads.size(); ++i) {
        memory.emplace_back(payloads[i], 2 * i + 1);
        parts.push_back(memory.back().span());
      }
    }
    std::vector<Guarded<std::byte>> memory;
    std::vector<ConstPayload> parts;
  };

  std::vector<std::byte> payload_in(Guarded<std::byte>& out) {
    EXPECT_TRUE(out.guards_hold());
    std::vector<std::byte> bytes = out.values();
    const size_t length = read_header(bytes).bytes;
    bytes.resize(length);
    return bytes;
  }

  std::shared_ptr<DeviceState> state_;
  std::unique_ptr<Compressor> compressor_;
  TestStream stream_;
  Workspace workspace_{kEmulated};
};

}  // namespace gradwire::testing
