#pragma once
// What the laws run over: every row of the registry with every value codec and rounding it takes.

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "tests/support/generators.h"

namespace gradwire::testing {

/// Spec strings of all rows; each keeps error feedback.
inline std::vector<std::string> all_specs() {
  std::vector<std::string> specs;
  for (const CompressorRow& row : compressor_registry()) {
    const std::string name(row.name);
    if (row.selector) {
      for (const char* density : {":1%", ":30%"}) {
        for (const char* values : {"fp32", "fp16", "bf16", "int8", "int4"}) {
          specs.push_back(name + density + "," + values);
        }
      }
    } else if (row.takes_rounding) {
      for (const char* options :
           {",nearest", ",stochastic", ",stochastic,block=8", ",block=4096"}) {
        specs.push_back(name + options);
      }
    } else if (row.takes_block) {
      for (const char* options : {"", ",block=8", ",block=4096"}) {
        specs.push_back(name + options);
      }
    } else {
      specs.push_back(name + ",ef");
    }
  }
  return specs;
}

inline const std::vector<size_t>& odd_sizes() {
  static const std::vector<size_t> sizes = {
      0, 1, 2, 255, 256, 257, 4095, 4096, 4097, 2 * kChunk, 3 * kChunk + 1, 6 * kChunk + 77};
  return sizes;
}

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

/// A compressor with its stream and workspace, called as if it were synchronous.
class Rig {
 public:
  explicit Rig(const std::string& spec, CompressorShape shape, int threads = 1)
      : compressor_(make_compressor(parse_spec(spec), std::move(shape))),
        stream_(make_inline_stream(threads)) {}

  Compressor& compressor() { return *compressor_; }
  Context context() { return {*stream_, workspace_}; }
  size_t numel() const { return compressor_->shape().numel; }

  /// The payload, cut to its true length. Residuals may be empty.
  std::vector<std::byte> compress(OwnedTensor& g, ConstResidual e, Residual e_next) {
    std::vector<std::byte> out(compressor_->capacity_bytes(), std::byte{0x5A});
    Context c = context();
    compressor_->compress(g.view(), e, e_next, out, c);
    stream_->wait();
    out.resize(payload_bytes(out));
    return out;
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

 private:
  std::unique_ptr<Compressor> compressor_;
  std::unique_ptr<Stream> stream_;
  Workspace workspace_;
};

/// Regions that tile [0, numel), `chunks` chunks each.
inline std::vector<Region> tiles(size_t numel, size_t chunks) {
  std::vector<Region> regions;
  for (size_t begin = 0; begin < numel; begin += chunks * kChunk) {
    regions.push_back({begin, std::min(numel, begin + chunks * kChunk)});
  }
  return regions;
}

inline uint8_t flags_of(const std::vector<std::byte>& payload) {
  return read_header(payload).flags;
}

/// float(g + e), element by element.
inline std::vector<float> sum_of(const std::vector<float>& g, const std::vector<float>& e) {
  std::vector<float> x(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    x[i] = g[i] + e[i];
  }
  return x;
}

/// Whether g + e == D + e_next bit for bit; else to one rounding of float32.
inline bool is_exact(const std::string& spec) {
  return spec.find("stochastic") == std::string::npos && !spec.starts_with("1bit");
}

inline bool is_stochastic(const std::string& spec) {
  return spec.find("stochastic") != std::string::npos;
}

}  // namespace gradwire::testing
