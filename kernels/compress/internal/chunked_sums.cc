// What chunked compressors make of received payloads: sums, and whether these are finite.

#include <algorithm>
#include <atomic>
#include <limits>

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {

void ChunkedCompressor::sum_chunk(std::span<const Part> parts, size_t chunk,
                                  std::span<float> sum) const {
  std::ranges::fill(sum, 0.0f);
  for (const Part& part : parts) {
    if (chunk * kChunk >= part.region.begin && chunk * kChunk < part.region.end) {
      add_chunk(part, chunk, sum);
    }
  }
}

void ChunkedCompressor::read_sum(std::span<const Part> parts, size_t chunk, float scale,
                                 std::span<float> out) const {
  sum_chunk(parts, chunk, out);
  if (scale != 1.0f) {
    cpu::multiply(out, scale, out);
  }
}

bool ChunkedCompressor::write_sum(std::span<const Part> parts, size_t chunk, float scale,
                                  Gradient out) const {
  alignas(64) float values[kChunk];
  const std::span<float> total(values, out.numel);
  ChunkedCompressor::read_sum(parts, chunk, scale, total);
  return cpu::narrow_finite(total, out, cpu::Caching::kNormal);
}

float ChunkedCompressor::most_in(const Part&, size_t) const {
  return std::numeric_limits<float>::infinity();
}

bool ChunkedCompressor::cannot_overflow(std::span<const Part> parts, size_t chunk,
                                        float scale) const {
  double most = 0;
  for (const Part& part : parts) {
    if (chunk * kChunk >= part.region.begin && chunk * kChunk < part.region.end) {
      most += double{most_in(part, chunk)};
    }
  }
  return stays_finite(most, scale);
}

void ChunkedCompressor::decompress_region(const RegionSum& what, Context& context) {
  check_on_cpu(context);
  check_region(what.region);
  check_elements(*this, what.sum, what.region.numel());
  check_scale(*this, what.scale);
  check_payloads(*this, what.parts);
  context.stream.enqueue(
      [this, what, &stream = context.stream, &workspace = context.workspace, step = step()] {
        Workspace::Frame frame(workspace);
        const std::span<const Part> parts = open_all(what.parts, frame, stream.pool());
        const bool finite = write_region(parts, what, {stream.pool(), workspace, step});
        if (what.finite != nullptr && !finite) {
          *what.finite = false;
        }
      });
}

// Signs send the mean magnitude of up to 4096 elements, blocks are chosen by norms of as many: what
// is left is below 2^20 times what is sent. float16 saturates. What ef21 keeps is the sum of all it
// sent.
void ChunkedCompressor::look_for_large_rest(ConstPayload payload, bool& large, Context& context) {
  with_part(payload, context, [this, &large](const Part& part, const Work& work) {
    if (!decodes_chunks()) {
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

bool ChunkedCompressor::write_region(std::span<const Part> parts, const RegionSum& what,
                                     const Work& work) {
  const size_t first = what.region.begin / kChunk;
  std::atomic<bool> finite{true};
  cpu::for_each_chunk(work.pool, chunks_of(what.region.numel()), [&](size_t i) {
    const Region region = region_of(first + i);
    if (!write_sum(parts, first + i, what.scale, what.sum.subview(i * kChunk, region.numel()))) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite;
}

void ChunkedCompressor::check_sum(std::span<const ConstPayload> payloads, float scale, bool& finite,
                                  Context& context) {
  if (!decodes_chunks()) {
    Compressor::check_sum(payloads, scale, finite, context);
  }
  check_on_cpu(context);
  check_scale(*this, scale);
  check_payloads(*this, payloads);
  context.stream.enqueue(
      [this, payloads, scale, &finite, &stream = context.stream, &workspace = context.workspace] {
        Workspace::Frame frame(workspace);
        const std::span<const Part> parts = open_all(payloads, frame, stream.pool());
        std::atomic<bool> good{true};
        cpu::for_each_chunk(stream.pool(), chunks_of(shape().numel), [&](size_t chunk) {
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
