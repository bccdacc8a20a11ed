#include "gradwire/kernels/compress/payload_sum.h"

#include <algorithm>

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

const ChunkedCompressor& checked(const Compressor& compressor) {
  const auto* const chunked = dynamic_cast<const ChunkedCompressor*>(&compressor);
  check(chunked != nullptr, "payload_sum: the compressor is '", to_string(compressor.spec()),
        "' in GPU memory, expected one in CPU memory");
  check(!find_compressor(compressor.spec().name).low_rank, "payload_sum: the compressor is '",
        to_string(compressor.spec()), "', expected one whose payloads decode chunk by chunk");
  return *chunked;
}

}  // namespace

PayloadSum::PayloadSum(const Compressor& compressor) : compressor_(checked(compressor)) {}

PayloadSum::~PayloadSum() = default;

void PayloadSum::open(std::span<const ConstPayload> parts, float scale, Context& context) {
  compressor_.check_on_cpu(context);
  check_scale(compressor_, scale);
  check_payloads(compressor_, parts);
  context.stream.enqueue([this, parts, scale, &stream = context.stream] {
    parts_ = {};
    frame_.reset();
    frame_.emplace(workspace_);
    try {
      parts_ = compressor_.open_all(parts, *frame_, stream.pool());
    } catch (...) {
      frame_.reset();
      throw;
    }
    scale_ = scale;
  });
}

size_t PayloadSum::numel() const { return compressor_.shape().numel; }

void PayloadSum::check_held(size_t begin, size_t count) const {
  check(frame_.has_value(), "payload_sum: no payloads are held, expected open() before");
  check(begin <= numel() && count <= numel() - begin, "payload_sum: elements [", begin, ", ",
        begin + count, ") of ", numel(), ", must be among them");
}

void PayloadSum::read(size_t begin, std::span<float> out) const {
  check_held(begin, out.size());
  for (size_t at = 0; at < out.size();) {
    const size_t chunk = (begin + at) / kChunk;
    const Region region = compressor_.region_of(chunk);
    const size_t skip = begin + at - region.begin;
    const std::span<float> to = out.subspan(at, std::min(region.numel() - skip, out.size() - at));
    if (to.size() == region.numel()) {
      compressor_.read_sum(parts_, chunk, scale_, to);
    } else {
      alignas(64) float room[kChunk];
      compressor_.read_sum(parts_, chunk, scale_, {room, region.numel()});
      std::copy_n(room + skip, to.size(), to.begin());
    }
    at += to.size();
  }
}

bool PayloadSum::empty_chunk(size_t chunk) const {
  return std::ranges::all_of(parts_, [&](const Part& part) {
    const size_t first = part.region.begin / kChunk;
    const bool covered = chunk >= first && chunk * kChunk < part.region.end;
    return !covered || (!part.places.empty() && part.places[chunk - first].count == 0);
  });
}

bool PayloadSum::known_zero(size_t begin, size_t count) const {
  check_held(begin, count);
  for (size_t chunk = begin / kChunk; chunk * kChunk < begin + count; ++chunk) {
    if (!empty_chunk(chunk)) {
      return false;
    }
  }
  return true;
}

}  // namespace gradwire
