// powersgd: of every matrix M = g + e the factors of a product of rank R. A step sends one side and
// keeps the other: where that is an orthonormal Q, P = M Q and D = P Q^T; in the next step, with P
// made orthonormal from the mean of all ranks, Q = M^T P and D = P Q^T. Sums of factors are factors
// of the sum, and the other side is the same on all ranks, so that payloads add up in flight.
// Vogels et al. (PowerSGD), arXiv:1905.13727; one side a step: Zhang et al. (ACP-SGD),
// arXiv:2306.08881. Elements of other parameters, and of matrices that factors would not make
// smaller, are sent as float32.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/factor_layout.h"
#include "gradwire/kernels/compress/internal/factor_state.h"
#include "gradwire/kernels/compress/internal/factories.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

FactorSide side_of(const Part& part) { return static_cast<FactorSide>(part.variant); }

class LowRank final : public ChunkedCompressor {
 public:
  LowRank(const CompressorSpec& spec, CompressorShape shape)
      : ChunkedCompressor(spec, std::move(shape), {PayloadFormat::kLowRank, spec.values}),
        layout_(this->shape().segments, spec.rank) {}

  bool fixed_length() const override {
    return layout_.factors(FactorSide::kLeft) == layout_.factors(FactorSide::kRight);
  }
  Combine combine() const override { return Combine::kSum; }
  /// Both buffers of what was learned, and the factors drawn of either side.
  size_t kept_bytes() const override {
    const size_t left = layout_.factors(FactorSide::kLeft);
    const size_t right = layout_.factors(FactorSide::kRight);
    return (2 * std::max(left, right) + left + right) * sizeof(float);
  }

  void commit() override {
    held_.reset();
    if (learned_in_ == step()) {
      std::swap(factors_, learned_);
      held_ = side_of_step(step());
    }
    learned_in_.reset();
    Compressor::commit();
  }
  void set_step(uint32_t step) override {
    held_.reset();
    learned_in_.reset();
    Compressor::set_step(step);
  }
  std::vector<uint64_t> state() const override {
    return held_ ? pack_factors(layout_, spec().rank, *held_, factors_) : std::vector<uint64_t>{};
  }
  void set_state(std::span<const uint64_t> state) override {
    const size_t found = take_factors(state);
    check(state.empty() || found == layout_.matrices().size(), spec().name, ": its state of ",
          state.size(), " words has factors of ", found, " of its matrices, expected all ",
          layout_.matrices().size());
  }
  void learn_from(std::span<const uint64_t> state) override { take_factors(state); }

 protected:
  uint32_t last_variant() const override { return static_cast<uint32_t>(FactorSide::kRight); }
  size_t capacity_for(Region region) const override {
    return bytes_of(std::max(layout_.floats_in(region, FactorSide::kLeft),
                             layout_.floats_in(region, FactorSide::kRight)));
  }
  void open_body(Part& part, PartName name, Workspace::Frame& frame,
                 ThreadPool& pool) const override;
  void add_chunk(const Part& part, size_t chunk, std::span<float> sum) const override;
  void add_part(const Part& part, Residual x, const Work& work) override;
  void write_region(std::span<const Part> parts, const RegionSum& what, const Work& work) override;
  void write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
             const Work& work) override;
  void write_accumulated(Residual x, Payload out, const Work& work) override;
  void write_slice(const Part& part, Region region, Payload out) const override;
  void write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                    Payload out, const Work& work) const override;

 private:
  static size_t bytes_of(size_t floats) { return sizeof(PayloadHeader) + floats * sizeof(float); }
  size_t take_factors(std::span<const uint64_t> state);
  /// What this step multiplies by: as the last step left it, or drawn.
  const float* basis(FactorSide side);
  /// The first basis of a side, made where it is needed first.
  std::span<const float> drawn(FactorSide side) {
    const auto s = static_cast<size_t>(side);
    std::call_once(made_[s], [&] {
      drawn_[s].resize(layout_.factors(side));
      draw_factors(layout_, spec().rank, side, shape().seed, drawn_[s]);
      ThreadPool one(1);
      cpu::orthonormalise(layout_.matrices(), spec().rank, side, drawn_[s].data(), one);
    });
    return drawn_[s];
  }
  cpu::FactorPair pair(FactorSide sent, const float* factors) {
    const float* const other = basis(other_side(sent));
    return sent == FactorSide::kLeft ? cpu::FactorPair{factors, other}
                                     : cpu::FactorPair{other, factors};
  }
  /// Writes the plain elements of x to the body, and what is left of them; whether all are finite.
  bool send_plain(const cpu::LowRankInput& input, Residual e_next, std::byte* body,
                  ThreadPool& pool) const;
  /// Writes the factors, then the rest; whether everything is finite.
  bool send_factors(const cpu::LowRankInput& input, Residual e_next, std::span<float> factors,
                    const Work& work);
  void finish(bool finite, std::span<const float> factors, Payload out, FactorSide side) const;
  void sum_floats(std::span<const Part> parts, float scale, std::span<float> sum,
                  ThreadPool& pool) const;
  bool cover_all(std::span<const Part> parts) const;

  const FactorLayout layout_;
  std::once_flag made_[2];
  std::vector<float> drawn_[2];
  std::vector<float> factors_, learned_;  // committed; of the step in progress
  std::optional<FactorSide> held_;        // which side factors_ are
  std::optional<uint32_t> learned_in_;    // the step that learned_ is of
};

// Unaligned floats: payloads begin anywhere.
void load_floats(const std::byte* from, std::span<float> to) {
  std::memcpy(to.data(), from, to.size_bytes());
}

const float* LowRank::basis(FactorSide side) {
  return held_ == side ? factors_.data() : drawn(side).data();
}

size_t LowRank::take_factors(std::span<const uint64_t> state) {
  const FactorSide side = other_side(side_of_step(step()));
  if (!holds_factors(state, spec().rank, side)) {
    return 0;
  }
  if (held_ != side) {
    const std::span<const float> first = drawn(side);
    factors_.assign(first.begin(), first.end());
    held_ = side;
  }
  return unpack_factors(state, layout_, spec().rank, factors_);
}

void LowRank::open_body(Part& part, PartName name, Workspace::Frame&, ThreadPool&) const {
  const size_t expected = layout_.floats_in(part.region, side_of(part)) * sizeof(float);
  check(part.body.size() == expected, name, ": body is ", part.body.size(), " bytes, must be ",
        expected);
}

bool LowRank::send_plain(const cpu::LowRankInput& input, Residual e_next, std::byte* body,
                         ThreadPool& pool) const {
  std::atomic<bool> finite{true};
  for (const PlainRun& run : layout_.plain_runs()) {
    cpu::for_each_chunk(pool, chunks_of(run.numel), [&](size_t i) {
      alignas(64) float room[kChunk];
      const size_t begin = i * kChunk, numel = std::min(kChunk, run.numel - begin);
      const size_t at = run.offset + begin;
      const std::span<float> x(room, numel);
      cpu::widen(input.g.subview(at, numel), x);
      if (!input.e.empty()) {
        cpu::add(x, input.e.subspan(at, numel), x);
      }
      if (!cpu::all_finite(x)) {
        finite.store(false, std::memory_order_relaxed);
      }
      std::memcpy(body + (run.before + begin) * sizeof(float), room, x.size_bytes());
      if (!e_next.empty()) {
        std::ranges::fill(e_next.subspan(at, numel), 0.0f);
      }
    });
  }
  return finite;
}

bool LowRank::send_factors(const cpu::LowRankInput& input, Residual e_next,
                           std::span<float> factors, const Work& work) {
  const FactorSide side = side_of_step(work.step);
  const float* const other = basis(other_side(side));
  if (side == FactorSide::kLeft) {
    return cpu::multiply_right(input, other, factors.data(), e_next, work.pool);
  }
  const bool finite =
      cpu::multiply_left(input, other, factors.data(), work.workspace, work.pool);
  return e_next.empty() ? finite
                        : cpu::subtract_product(input, pair(side, factors.data()), e_next,
                                                work.pool) && finite;
}

// Of values that are not finite nothing is sent.
void LowRank::finish(bool finite, std::span<const float> factors, Payload out,
                     FactorSide side) const {
  const size_t bytes = bytes_of(layout_.floats(side));
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  if (finite) {
    std::ranges::copy(std::as_bytes(factors), body + layout_.plain() * sizeof(float));
  } else {
    std::fill_n(body, bytes - sizeof(PayloadHeader), std::byte{0});
  }
  write_header(out, whole(), finite ? 0 : kFlagNonFinite, bytes, static_cast<uint32_t>(side));
}

void LowRank::write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                    const Work& work) {
  const FactorSide side = side_of_step(work.step);
  const cpu::LowRankInput input{g, e, layout_.matrices(), spec().rank};
  Workspace::Frame frame(work.workspace);
  const auto factors = frame.take<float>(layout_.factors(side));
  const bool plain = send_plain(input, e_next, out.data() + sizeof(PayloadHeader), work.pool);
  finish(send_factors(input, e_next, factors, work) && plain, factors, out, side);
}

// Where only what is left overflows, x has been taken from and nothing is flagged: the next step
// meets it.
void LowRank::write_accumulated(Residual x, Payload out, const Work& work) {
  const FactorSide side = side_of_step(work.step);
  const cpu::LowRankInput input{view_of(std::span<const float>(x)), {}, layout_.matrices(),
                                spec().rank};
  Workspace::Frame frame(work.workspace);
  const auto factors = frame.take<float>(layout_.factors(side));
  const bool plain = send_plain(input, {}, out.data() + sizeof(PayloadHeader), work.pool);
  const bool finite = send_factors(input, {}, factors, work) && plain;
  finish(finite, factors, out, side);
  if (!finite) {
    return;
  }
  for (const PlainRun& run : layout_.plain_runs()) {
    std::ranges::fill(x.subspan(run.offset, run.numel), 0.0f);
  }
  cpu::subtract_product(input, pair(side, factors.data()), x, work.pool);
}

void LowRank::write_slice(const Part& part, Region region, Payload out) const {
  const FactorSide side = side_of(part);
  const FloatRange from_plain = layout_.plain_in(part.region), plain = layout_.plain_in(region);
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
      parts.empty() ? static_cast<uint32_t>(side_of_step(work.step)) : parts.front().variant;
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
  const Region region = region_of(chunk);
  const size_t from = layout_.plain_in(part.region).first;
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
  const FactorSide side = side_of(part);
  check(side == side_of_step(work.step), PartName{0}, ": variant is ", part.variant,
        ", must be the other one in step ", work.step);
  ChunkedCompressor::add_part(part, x, work);
  Workspace::Frame frame(work.workspace);
  const auto factors = frame.take<float>(layout_.factors(side));
  load_floats(part.body.data() + layout_.plain() * sizeof(float), factors);
  cpu::write_product(layout_.matrices(), spec().rank, pair(side, factors.data()),
                     {view_of(x), 0, true}, work.pool);
}

void LowRank::sum_floats(std::span<const Part> parts, float scale, std::span<float> sum,
                         ThreadPool& pool) const {
  cpu::for_each_chunk(pool, chunks_of(sum.size()), [&](size_t i) {
    alignas(64) float room[kChunk];
    const size_t first = i * kChunk;
    const std::span<float> tile = sum.subspan(first, std::min(kChunk, sum.size() - first));
    std::ranges::fill(tile, 0.0f);
    for (const Part& part : parts) {
      const FloatRange plain = layout_.plain_in(part.region);
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
      add_run(layout_.plain() + factors.first, factors.count, plain.count);
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

void LowRank::write_region(std::span<const Part> parts, const RegionSum& what, const Work& work) {
  const FactorSide side = side_of_step(work.step);
  for (size_t i = 0; i < parts.size(); ++i) {
    check(side_of(parts[i]) == side || parts[i].region.numel() == 0, PartName{i}, ": variant is ",
          parts[i].variant, ", must be ", static_cast<uint32_t>(side), " in step ", work.step);
  }
  Workspace::Frame frame(work.workspace);
  const auto sum = frame.take<float>(layout_.floats(side));
  sum_floats(parts, what.scale, sum, work.pool);
  const std::span<float> factors = sum.subspan(layout_.plain());
  const Region region = what.region;
  for (const PlainRun& run : layout_.plain_runs()) {
    const size_t begin = std::max<size_t>(region.begin, run.offset);
    const size_t end = std::min<size_t>(region.end, run.offset + run.numel);
    if (begin < end) {
      cpu::narrow(sum.subspan(run.before + begin - run.offset, end - begin),
                  what.sum.subview(begin - region.begin, end - begin));
    }
  }
  cpu::write_product(layout_.matrices(), spec().rank, pair(side, factors.data()),
                     {what.sum, region.begin}, work.pool);
  if (region == whole() && cover_all(parts)) {
    learned_.assign(factors.begin(), factors.end());
    cpu::orthonormalise(layout_.matrices(), spec().rank, side, learned_.data(), work.pool);
    learned_in_ = work.step;
  }
}

}  // namespace

std::unique_ptr<Compressor> make_low_rank(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<LowRank>(spec, std::move(shape));
}

}  // namespace gradwire
