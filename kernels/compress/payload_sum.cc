#include "gradwire/kernels/compress/payload_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradwire/kernels/compress/internal/arguments.h"
#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/cuda_format.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

/// What is in front of the words of checks, in the memory of a source.
constexpr size_t kSourceBytes = (sizeof(cuda::PayloadSource) + 63) / 64 * 64;

const CudaFormat* gpu_form(const Format& format) {
  const auto* const on_gpu = dynamic_cast<const CudaFormat*>(&format);
  const bool by_chunks = format.traits().by_chunks;
  check(by_chunks && (on_gpu == nullptr || on_gpu->read_format()),
        "payload_sum: the compressor is '", to_string(format.spec()),
        on_gpu == nullptr ? "'" : "' in GPU memory",
        ", expected one whose payloads decode chunk by chunk",
        !by_chunks || on_gpu == nullptr ? "" : " where kernels read them");
  return on_gpu;
}

}  // namespace

PayloadSum::PayloadSum(const Compressor& compressor)
    : compressor_(compressor),
      on_gpu_(gpu_form(*compressor.format_)),
      source_(on_gpu_ == nullptr ? 0 : kSourceBytes + sizeof(cuda::StepWords),
              compressor.shape().device) {}

PayloadSum::~PayloadSum() = default;

const ChunkedFormat& PayloadSum::on_cpu() const {
  return static_cast<const ChunkedFormat&>(*compressor_.format_);
}

void PayloadSum::open(std::span<const ConstPayload> parts, float scale, Context& context) {
  check_context(compressor_, context);
  check_scale(compressor_, scale);
  check_payloads(compressor_, parts);
  if (on_gpu_ != nullptr) {
    open_on_device(parts, scale, context);
    return;
  }
  context.stream.enqueue([this, parts, scale, &stream = context.stream] {
    parts_ = {};
    frame_.reset();
    frame_.emplace(workspace_);
    try {
      parts_ = on_cpu().open_all(parts, *frame_, stream.pool());
    } catch (...) {
      frame_.reset();
      throw;
    }
    const bool finite = std::ranges::none_of(
        parts_, [](const Part& part) { return (part.flags & kFlagNonFinite) != 0; });
    // Codes are finite also where what they stand for was not.
    scale_ = finite ? scale : std::numeric_limits<float>::quiet_NaN();
  });
}

void PayloadSum::open_on_device(std::span<const ConstPayload> parts, float scale,
                                Context& context) {
  const size_t count = parts.size();
  const auto table_bytes = [](size_t n) { return (n * sizeof(cuda::DevicePart) + 63) / 64 * 64; };
  const size_t places = cuda::read_workspace_bytes(*on_gpu_->read_format(), numel(), count);
  if (count > most_parts_ || table_.size_bytes() < table_bytes(count) + places) {
    context.stream.wait();  // kernels may still read what is given back
    table_ = Buffer(table_bytes(count) + places, device());
    most_parts_ = count;
  }
  on_gpu_->hold(parts, scale,
                {.table = table_.as<cuda::DevicePart>().first(count),
                 .workspace = table_.bytes().subspan(table_bytes(count)),
                 .words = reinterpret_cast<cuda::StepWords*>(source_.data() + kSourceBytes),
                 .source = reinterpret_cast<cuda::PayloadSource*>(source_.data())},
                context);
}

Device PayloadSum::device() const { return compressor_.shape().device; }

const cuda::PayloadSource* PayloadSum::on_device() const {
  return on_gpu_ == nullptr ? nullptr
                            : reinterpret_cast<const cuda::PayloadSource*>(source_.data());
}

size_t PayloadSum::numel() const { return compressor_.shape().numel; }

void PayloadSum::check_held(size_t begin, size_t count) const {
  check(on_gpu_ == nullptr,
        "payload_sum: the payloads are in GPU memory, expected kernels to read");
  check(frame_.has_value(), "payload_sum: no payloads are held, expected open() before");
  check(begin <= numel() && count <= numel() - begin, "payload_sum: elements [", begin, ", ",
        begin + count, ") of ", numel(), ", must be among them");
}

void PayloadSum::read(size_t begin, std::span<float> out) const {
  check_held(begin, out.size());
  for (size_t at = 0; at < out.size();) {
    const size_t chunk = (begin + at) / kChunk;
    const Region region = on_cpu().region_of(chunk);
    const size_t skip = begin + at - region.begin;
    const std::span<float> to = out.subspan(at, std::min(region.numel() - skip, out.size() - at));
    if (to.size() == region.numel()) {
      on_cpu().read_sum(parts_, chunk, scale_, to);
    } else {
      alignas(64) float room[kChunk];
      on_cpu().read_sum(parts_, chunk, scale_, {room, region.numel()});
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
  if (on_gpu_ != nullptr) {
    return false;
  }
  check_held(begin, count);
  if (std::isnan(scale_)) {
    return false;
  }
  for (size_t chunk = begin / kChunk; chunk * kChunk < begin + count; ++chunk) {
    if (!empty_chunk(chunk)) {
      return false;
    }
  }
  return true;
}

}  // namespace gradwire
