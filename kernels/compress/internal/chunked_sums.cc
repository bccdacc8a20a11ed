// What chunked compressors make of received payloads: sums, and whether these are finite.

#include <algorithm>
#include <atomic>
#include <limits>

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {

void ChunkedFormat::sum_chunk(std::span<const Part> parts, size_t chunk,
                              std::span<float> sum) const {
  std::ranges::fill(sum, 0.0f);
  for (const Part& part : parts) {
    if (chunk * kChunk >= part.region.begin && chunk * kChunk < part.region.end) {
      add_chunk(part, chunk, sum);
    }
  }
}

void ChunkedFormat::read_sum(std::span<const Part> parts, size_t chunk, float scale,
                             std::span<float> out) const {
  sum_chunk(parts, chunk, out);
  if (scale != 1.0f) {
    cpu::multiply(out, scale, out);
  }
}

bool ChunkedFormat::write_sum(std::span<const Part> parts, size_t chunk, float scale,
                              Gradient out) const {
  alignas(64) float values[kChunk];
  const std::span<float> total(values, out.numel);
  ChunkedFormat::read_sum(parts, chunk, scale, total);
  return cpu::narrow_finite(total, out, cpu::Caching::kNormal);
}

float ChunkedFormat::most_in(const Part&, size_t) const {
  return std::numeric_limits<float>::infinity();
}

bool ChunkedFormat::cannot_overflow(std::span<const Part> parts, size_t chunk, float scale) const {
  double most = 0;
  for (const Part& part : parts) {
    if (chunk * kChunk >= part.region.begin && chunk * kChunk < part.region.end) {
      most += double{most_in(part, chunk)};
    }
  }
  return stays_finite(most, scale);
}

void ChunkedFormat::decompress(std::span<const ConstPayload> parts, const Sum& what,
                               Context& context) {
  enqueue(context, [this, parts, what](const Work& work) {
    Workspace::Frame frame(work.workspace);
    if (!write_group(open_all(parts, frame, work.pool), what, work) && what.finite != nullptr) {
      *what.finite = false;
    }
  });
}

void ChunkedFormat::write_first(std::span<const Part>, float, const Work&) {
  throw InvalidArgument(concat(text_, ": has two rounds, and no way to take the first payloads"));
}

void ChunkedFormat::write_slice_at_most(const Part&, const SliceInput& input, Residual, Payload,
                                        const Work&) const {
  throw InvalidArgument(concat(text_, ": most_entries is ", input.most_entries,
                               ", must not be given: its payloads have no entries"));
}

void ChunkedFormat::count_entries(ConstPayload payload, std::span<float> counts, Context& context) {
  with_part(payload, context, [this, counts](const Part& part, const Work&) {
    check(part.places.size() == chunks_of(part.region.numel()), text_,
          ": entries cannot be counted: its payloads have none");
    for (size_t i = 0; i < part.places.size(); ++i) {
      counts[part.region.begin / kChunk + i] += static_cast<float>(part.places[i].count);
    }
  });
}

// Signs send the mean magnitude of up to 4096 elements, blocks are chosen by norms of as many: what
// is left is below 2^20 times what is sent. float16 saturates. What ef21 keeps is the sum of all it
// sent.
void ChunkedFormat::look_for_large_rest(ConstPayload payload, bool& large, Context& context) {
  with_part(payload, context, [this, &large](const Part& part, const Work& work) {
    if (!traits().by_chunks) {
      return;  // nothing is put back
    }
    const float limit = coding_.values == ValueCodec::kFloat16 ? 0x1p14f : 0x1p100f;
    std::atomic<bool> found{!bounds_its_rest(part) || large_estimate_};
    cpu::for_each_chunk(work.pool, chunks_of(shape().numel), [&](size_t chunk) {
      if (!(most_in(part, chunk) < limit)) {
        found.store(true, std::memory_order_relaxed);
      }
    });
    large = large || found;
  });
}

bool ChunkedFormat::write_group(std::span<const Part> parts, const Sum& what, const Work& work) {
  std::atomic<bool> finite{true};
  cpu::for_each_chunk(work.pool, chunks_of(shape().numel), [&](size_t chunk) {
    const Region region = region_of(chunk);
    if (!write_sum(parts, chunk, what.scale, what.sum.subview(region.begin, region.numel()))) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite;
}

void ChunkedFormat::check_sum(std::span<const ConstPayload> payloads, float scale, bool& finite,
                              Context& context) {
  enqueue(context, [this, payloads, scale, &finite](const Work& work) {
    Workspace::Frame frame(work.workspace);
    const std::span<const Part> parts = open_all(payloads, frame, work.pool);
    std::atomic<bool> good{true};
    cpu::for_each_chunk(work.pool, chunks_of(shape().numel), [&](size_t chunk) {
      if (cannot_overflow(parts, chunk, scale)) {
        return;
      }
      alignas(64) float room[kChunk];
      const std::span<float> values(room, region_of(chunk).numel());
      read_sum(parts, chunk, scale, values);
      if (!cpu::all_finite(values)) {
        good.store(false, std::memory_order_relaxed);
      }
    });
    if (!good) {
      finite = false;
    }
  });
}

}  // namespace gradwire
