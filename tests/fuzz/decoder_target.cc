#include "tests/fuzz/decoder_target.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "gradwire/kernels/compress/compressor.h"

namespace gradwire::fuzz {
namespace {

constexpr float kUntouched = 12345.0f;

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "decoder: %s\n", what);
    std::abort();
  }
}

/// The input's first bytes say what to do with the others.
struct Control {
  std::string spec;
  size_t numel;
  DType dtype;
  uint8_t action;
  bool honest_header;  ///< the header is mended, so that the body is looked at
};

Control control_of(std::span<const std::byte> input) {
  const auto byte = [&](size_t i) { return std::to_integer<uint8_t>(input[i]); };
  const auto& all = specs();
  const auto& sizes = numels();
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  return {all[byte(0) % all.size()], sizes[byte(1) % sizes.size()], kDTypes[byte(2) % 3],
          static_cast<uint8_t>(byte(3) % kActions), (byte(3) & 0x80) != 0};
}

/// Everything but version, flags and lengths that a sender of this spec and shape would write.
void mend_header(std::span<std::byte> payload, const Compressor& compressor) {
  PayloadHeader header;
  if (payload.size() < sizeof header) {
    return;
  }
  std::memcpy(&header, payload.data(), sizeof header);
  header.magic = kPayloadMagic;
  header.version = kPayloadVersion;
  header.spec_fingerprint = fingerprint(compressor.spec());
  header.first_chunk = 0;
  header.numel = compressor.shape().numel;
  header.bytes = payload.size();
  std::memcpy(payload.data(), &header, sizeof header);
}

class Decoder {
 public:
  explicit Decoder(const Control& control)
      : compressor_(make_compressor(parse_spec(control.spec), {.numel = control.numel,
                                                               .dtype = control.dtype,
                                                               .device = {},
                                                               .segments = {},
                                                               .seed = 1,
                                                               .rank = 0})),
        stream_(make_inline_stream(1)) {}

  Compressor& compressor() { return *compressor_; }

  bool decompress(std::span<const ConstPayload> parts) {
    // Floats, whatever the dtype: room for one more, which must stay as it was.
    const size_t bytes = compressor_->shape().numel * size_of(compressor_->shape().dtype);
    const std::unique_ptr<std::byte[]> sum(new std::byte[bytes + sizeof kUntouched]);
    std::memcpy(sum.get() + bytes, &kUntouched, sizeof kUntouched);
    const bool taken = call([&](Context& context) {
      compressor_->decompress(
          parts, 0.5f, {sum.get(), compressor_->shape().numel, compressor_->shape().dtype, {}},
          context);
    });
    require(std::memcmp(sum.get() + bytes, &kUntouched, sizeof kUntouched) == 0,
            "wrote behind the gradient");
    return taken;
  }

  bool slice(ConstPayload payload, Region region) {
    const size_t room = compressor_->slice_capacity_bytes(region);
    const std::unique_ptr<std::byte[]> out(new std::byte[room]);
    return call([&](Context& context) {
      compressor_->slice(payload, region, {out.get(), room}, context);
    });
  }

  bool merge(std::span<const ConstPayload> slices) {
    const Region whole{0, compressor_->shape().numel};
    const size_t room = compressor_->slice_capacity_bytes(whole);
    const std::unique_ptr<std::byte[]> out(new std::byte[room]);
    return call([&](Context& context) {
      compressor_->merge({slices, whole, 0.5f}, {}, {out.get(), room}, context);
    });
  }

 private:
  /// Refusing is right: InvalidArgument, of which NonFiniteGradient is one. Nothing else is.
  template <class F>
  bool call(F&& f) {
    Context context{*stream_, workspace_};
    try {
      f(context);
      stream_->wait();
      return true;
    } catch (const InvalidArgument&) {
      return false;  // as promised
    }
  }

  std::unique_ptr<Compressor> compressor_;
  std::unique_ptr<Stream> stream_;
  Workspace workspace_;
};

}  // namespace

const std::vector<std::string>& specs() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> list;
    for (const CompressorRow& row : compressor_registry()) {
      list.emplace_back(row.example);
      if (row.selector()) {
        for (const char* values : {"fp32", "fp16", "bf16", "int8", "int4", "e4m3", "e5m2", "2bit", "1bit",
                                   "natural", "qsgd:5"}) {
          list.push_back(std::string(row.example) + "," + values);
        }
      }
      if (row.keeps_velocity()) {
        list.push_back(std::string(row.example) + ",warmup=1");
      }
      if (row.takes_rounding) {
        list.push_back(std::string(row.name) + ",stochastic,block=8");
      }
    }
    return list;
  }();
  return all;
}

const std::vector<size_t>& numels() {
  static const std::vector<size_t> all = {0, 1, 31, 255, 257, 4095, 4096, 4097, 9000};
  return all;
}

bool decode(std::span<const std::byte> input) {
  if (input.size() < kControlBytes) {
    return false;
  }
  const Control control = control_of(input);
  Decoder decoder(control);
  // A copy of exactly this size: reading past it is an error AddressSanitizer sees.
  const size_t size = input.size() - kControlBytes;
  const std::unique_ptr<std::byte[]> copy(new std::byte[size]);
  std::memcpy(copy.get(), input.data() + kControlBytes, size);
  const std::span<std::byte> payload(copy.get(), size);
  if (control.honest_header) {
    mend_header(payload, decoder.compressor());
  }
  const ConstPayload twice[] = {payload, payload};
  switch (control.action) {
    case 0:
      return decoder.decompress(std::span(twice).first(1));
    case 1:
      return decoder.decompress(twice);
    case 2:
      return decoder.slice(payload, {0, std::min<size_t>(control.numel, kChunk)});
    case 3:
      return decoder.slice(payload, {control.numel / kChunk * kChunk, control.numel});
    default:
      return decoder.merge(twice);
  }
}

}  // namespace gradwire::fuzz
