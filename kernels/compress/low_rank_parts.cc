// Received payloads of low rank: checks, sums and what they decode to, slices and merges.
// low_rank.cc says what they are.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "gradwire/kernels/compress/internal/low_rank.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

// Unaligned floats: payloads begin anywhere.
void load_floats(const std::byte* from, std::span<float> to) {
  std::memcpy(to.data(), from, to.size_bytes());
}

}  // namespace

void LowRank::open_body(Part& part, PartName name, Workspace::Frame&, ThreadPool&) const {
  const size_t expected = layout_.floats_in(part.region, side_of(part)) * sizeof(float);
  check(part.body.size() == expected, name, ": body is ", part.body.size(), " bytes, must be ",
        expected);
}

void LowRank::write_slice(const Part& part, Region region, Payload out) const {
  const FactorSide side = side_of(part);
  const FloatRange from_plain = layout_.plain_in(part.region, side);
  const FloatRange plain = layout_.plain_in(region, side);
  const FloatRange from = layout_.factors_in(part.region, side);
  const FloatRange factors = layout_.factors_in(region, side);
  write_header(out, region, part.flags, bytes_of(plain.count + factors.count), part.variant);
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  const auto copy = [&](size_t first, size_t count, size_t to) {
    std::ranges::copy(part.body.subspan(first * sizeof(float), count * sizeof(float)),
                      body + to * sizeof(float));
  };
  copy(plain.first - from_plain.first, plain.count, 0);
  copy(from_plain.count + factors.first - from.first, factors.count, plain.count);
}

void LowRank::write_merged(std::span<const Part> parts, const MergeInput& input, Residual,
                           Payload out, const Work& work) const {
  const uint32_t variant =
      parts.empty() ? static_cast<uint32_t>(side_expected(work.step)) : parts.front().variant;
  uint8_t flags = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    check(parts[i].variant == variant, PartName{i}, ": variant is ", parts[i].variant, ", must be ",
          variant, " as of payload part 0: the same factors");
    flags |= parts[i].flags;
  }
  const size_t floats = layout_.floats_in(input.region, static_cast<FactorSide>(variant));
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  std::atomic<bool> finite{true};
  cpu::for_each_chunk(work.pool, chunks_of(floats), [&](size_t i) {
    alignas(64) float room[kChunk], part_room[kChunk];
    const size_t first = i * kChunk, numel = std::min(kChunk, floats - first);
    const std::span<float> sum(room, numel), values(part_room, numel);
    std::ranges::fill(sum, 0.0f);
    for (const Part& part : parts) {
      load_floats(part.body.data() + first * sizeof(float), values);
      cpu::add(sum, values, sum);
    }
    cpu::multiply(sum, input.scale, sum);
    if (!cpu::all_finite(sum)) {
      finite.store(false, std::memory_order_relaxed);
    }
    std::memcpy(body + first * sizeof(float), room, sum.size_bytes());
  });
  write_header(out, input.region, finite ? flags : flags | kFlagNonFinite, bytes_of(floats),
               variant);
}

/// The plain elements of the chunk; those of matrices need all factors, see add_part().
void LowRank::add_chunk(const Part& part, size_t chunk, std::span<float> sum) const {
  if (layout_.plain(side_of(part)) == 0) {
    return;
  }
  const Region region = region_of(chunk);
  const size_t from = layout_.plain_in(part.region, side_of(part)).first;
  for (const PlainRun& run : layout_.plain_runs()) {
    const size_t begin = std::max<size_t>(region.begin, run.offset);
    const size_t end = std::min<size_t>(region.end, run.offset + run.numel);
    if (begin < end) {
      alignas(64) float room[kChunk];
      const std::span<float> values(room, end - begin);
      load_floats(part.body.data() + (run.before + begin - run.offset - from) * sizeof(float),
                  values);
      const auto to = sum.subspan(begin - region.begin, values.size());
      cpu::add(to, values, to);
    }
  }
}

void LowRank::add_part(const Part& part, Residual x, const Work& work) {
  check(part.region == whole() || layout_.matrices().empty(), spec().name,
        ": the payload covers elements [", part.region.begin, ", ", part.region.end,
        "), must cover all ", shape().numel, ": factors decode together");
  check_turn(work.step);
  const FactorSide side = side_of(part);
  check(side == side_expected(work.step), PartName{0}, ": variant is ", part.variant,
        ", must be the other one in step ", work.step);
  ChunkedFormat::add_part(part, x, work);
  Workspace::Frame frame(work.workspace);
  const auto factors = frame.take<float>(layout_.factors(side));
  load_floats(part.body.data() + layout_.plain(side) * sizeof(float), factors);
  cpu::write_product(layout_.matrices(), spec().choice.rank, pair(side, factors.data()),
                     {view_of(x), true}, work.pool);
}

void LowRank::sum_floats(std::span<const Part> parts, float scale, std::span<float> sum,
                         ThreadPool& pool) const {
  cpu::for_each_chunk(pool, chunks_of(sum.size()), [&](size_t i) {
    alignas(64) float room[kChunk];
    const size_t first = i * kChunk;
    const std::span<float> tile = sum.subspan(first, std::min(kChunk, sum.size() - first));
    std::ranges::fill(tile, 0.0f);
    for (const Part& part : parts) {
      const FloatRange plain = layout_.plain_in(part.region, side_of(part));
      const FloatRange factors = layout_.factors_in(part.region, side_of(part));
      const auto add_run = [&](size_t at, size_t count, size_t in_body) {
        const size_t begin = std::max(first, at), end = std::min(first + tile.size(), at + count);
        if (begin < end) {
          const std::span<float> values(room, end - begin);
          load_floats(part.body.data() + (in_body + begin - at) * sizeof(float), values);
          const auto to = tile.subspan(begin - first, values.size());
          cpu::add(to, values, to);
        }
      };
      add_run(plain.first, plain.count, 0);
      add_run(layout_.plain(side_of(part)) + factors.first, factors.count, plain.count);
    }
    cpu::multiply(tile, scale, tile);
  });
}

bool LowRank::cover_all(std::span<const Part> parts) const {
  size_t covered = 0;
  for (bool found = true; found && covered < shape().numel;) {
    found = false;
    for (const Part& part : parts) {
      if (part.region.begin <= covered && part.region.end > covered) {
        covered = part.region.end;
        found = true;
      }
    }
  }
  return covered == shape().numel;
}

// A first payload multiplies by what the step before left: another matrix than the one it is of.
void LowRank::check_turn(uint32_t step) const {
  check(!two_rounds() || first_in_ == step, spec().name, ": decompress() in step ", step,
        " comes before take_first(), expected after");
}

void LowRank::check_sides(std::span<const Part> parts, FactorSide side, uint32_t step) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    check(side_of(parts[i]) == side || parts[i].region.numel() == 0, PartName{i}, ": variant is ",
          parts[i].variant, ", must be ", static_cast<uint32_t>(side), " in step ", step);
  }
}

void LowRank::write_first(std::span<const Part> parts, float scale, const Work& work) {
  check_sides(parts, FactorSide::kLeft, work.step);
  check(cover_all(parts), spec().name, ": the first payloads leave a part of ", shape().numel,
        " elements out, must cover all");
  first_in_.reset();
  first_.resize(layout_.factors(FactorSide::kLeft));
  sum_floats(parts, scale, first_, work.pool);
  cpu::orthonormalise(layout_.matrices(), spec().choice.rank, FactorSide::kLeft, first_.data(),
                      work.pool);
  first_in_ = work.step;
}

bool LowRank::write_group(std::span<const Part> parts, const Sum& what, const Work& work) {
  check_turn(work.step);
  const FactorSide side = side_expected(work.step);
  check_sides(parts, side, work.step);
  Workspace::Frame frame(work.workspace);
  const auto sum = frame.take<float>(layout_.floats(side));
  sum_floats(parts, what.scale, sum, work.pool);
  const std::span<float> factors = sum.subspan(layout_.plain(side));
  bool finite = true;
  for (const PlainRun& run : layout_.plain_runs()) {
    finite = cpu::narrow_finite(sum.subspan(run.before, run.numel),
                                what.sum.subview(run.offset, run.numel), cpu::Caching::kNormal) &&
             finite;
  }
  finite = cpu::write_product(layout_.matrices(), spec().choice.rank, pair(side, factors.data()),
                              {what.sum}, work.pool) &&
           finite;
  if (side == side_learned(work.step) && cover_all(parts)) {
    learned_.assign(factors.begin(), factors.end());
    cpu::orthonormalise(layout_.matrices(), spec().choice.rank, side, learned_.data(), work.pool);
    learned_in_ = work.step;
  }
  return finite;
}

}  // namespace gradwire
