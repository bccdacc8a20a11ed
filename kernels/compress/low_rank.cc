// powersgd: of every matrix M = g + e the factors of a product of rank R. A step sends one side and
// keeps the other: where that is an orthonormal Q, P = M Q and D = P Q^T; in the next step, with P
// made orthonormal from the mean of all ranks, Q = M^T P and D = P Q^T. Sums of factors are factors
// of the sum, and the other side is the same on all ranks, so that payloads add up in flight.
// Vogels et al. (PowerSGD), arXiv:1905.13727; one side a step: Zhang et al. (ACP-SGD),
// arXiv:2306.08881. With two rounds a step does both: P = M Q, its mean made orthonormal, and Q =
// M^T P; what it sends and keeps is of the second, D = P Q^T. Elements of other parameters, and of
// matrices that factors would not make smaller, are sent as float32.

#include "gradwire/kernels/compress/internal/low_rank.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "gradwire/kernels/compress/internal/factor_state.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {

LowRank::LowRank(const CompressorSpec& spec, CompressorShape shape)
    : ChunkedFormat(spec, std::move(shape), {PayloadFormat::kLowRank, spec.codec.values}),
      layout_(this->shape().segments, spec.choice.rank, spec.choice.rounds) {}

// Kept are both buffers of what was learned, the factors of the first round, and those drawn.
FormatTraits LowRank::traits() const {
  const size_t left = layout_.factors(FactorSide::kLeft);
  const size_t right = layout_.factors(FactorSide::kRight);
  const size_t learned = spec().choice.rounds == 2 ? right : std::max(left, right);
  return {.combine = Combine::kSum,
          .fixed_length = layout_.floats(FactorSide::kLeft) == layout_.floats(FactorSide::kRight),
          .by_chunks = false,
          .first_bytes = two_rounds() ? bytes_of(layout_.floats(FactorSide::kLeft)) : 0,
          .learned_bytes = (2 * learned + left + right) * sizeof(float)};
}

FactorSide LowRank::side_to_write(const Work& work) const {
  return spec().choice.rounds == 1      ? side_of_step(work.step)
         : two_rounds() && !work.second ? FactorSide::kLeft
                                        : FactorSide::kRight;
}

FactorSide LowRank::side_expected(uint32_t step) const {
  return spec().choice.rounds == 1           ? side_of_step(step)
         : two_rounds() && first_in_ != step ? FactorSide::kLeft
                                             : FactorSide::kRight;
}

FactorSide LowRank::side_learned(uint32_t step) const {
  return spec().choice.rounds == 1 ? side_of_step(step) : FactorSide::kRight;
}

void LowRank::keep_learned() {
  held_.reset();
  if (learned_in_ == step()) {
    std::swap(factors_, learned_);
    held_ = side_learned(step());
  }
  learned_in_.reset();
  first_in_.reset();
}

void LowRank::forget_learned() {
  held_.reset();
  learned_in_.reset();
  first_in_.reset();
}

std::vector<uint64_t> LowRank::state() const {
  return held_ ? pack_factors(layout_, spec().choice.rank, *held_, factors_)
               : std::vector<uint64_t>{};
}

void LowRank::set_state(std::span<const uint64_t> state) { take_factors(state, !state.empty()); }

std::span<const float> LowRank::drawn(FactorSide side) {
  const auto s = static_cast<size_t>(side);
  std::call_once(made_[s], [&] {
    drawn_[s].resize(layout_.factors(side));
    draw_factors(layout_, spec().choice.rank, side, shape().seed, drawn_[s]);
    ThreadPool one(1);
    cpu::orthonormalise(layout_.matrices(), spec().choice.rank, side, drawn_[s].data(), one);
  });
  return drawn_[s];
}

const float* LowRank::basis(FactorSide side) {
  if (spec().choice.rounds == 2 && side == FactorSide::kLeft) {
    return first_.data();
  }
  return held_ == side ? factors_.data() : drawn(side).data();
}

// Nothing is written before everything is checked.
void LowRank::take_factors(std::span<const uint64_t> state, bool all) {
  const FactorSide side = step() == 0 ? FactorSide::kRight : side_learned(step() - 1);
  if (!holds_factors(state, spec().choice.rank, side)) {
    check(!all, spec().name, ": its state of ", state.size(), " words holds no ",
          side == FactorSide::kLeft ? "left" : "right", " factors of rank ", spec().choice.rank,
          ", as step ", step(), " expects");
    return;
  }
  const std::vector<const uint64_t*> places = find_factors(state, layout_, spec().choice.rank);
  const auto missing = static_cast<size_t>(std::ranges::count(places, nullptr));
  check(!all || missing == 0, spec().name, ": its state of ", state.size(),
        " words has factors of ", places.size() - missing, " of its matrices, expected all ",
        places.size());
  if (held_ != side) {
    const std::span<const float> first = drawn(side);
    factors_.assign(first.begin(), first.end());
    held_ = side;
  }
  for (size_t m = 0; m < places.size(); ++m) {
    const LowRankMatrix& matrix = layout_.matrices()[m];
    if (places[m] != nullptr) {
      std::memcpy(factors_.data() + matrix.at(side), places[m],
                  size_t{spec().choice.rank} * matrix.length(side) * sizeof(float));
    }
  }
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
  const FactorSide side = side_to_write(work);
  const float* const other = basis(other_side(side));
  if (side == FactorSide::kLeft) {
    return cpu::multiply_right(input, other, factors.data(), e_next, work.pool);
  }
  const bool finite = cpu::multiply_left(input, other, factors.data(), work.workspace, work.pool);
  return e_next.empty()
             ? finite
             : cpu::subtract_product(input, pair(side, factors.data()), e_next, work.pool) &&
                   finite;
}

// What is given by compress_accumulated() is its caller's.
bool LowRank::may_be_kept(const Work& work) const {
  return work.given == nullptr || cpu::may_be_kept(layout_.matrices(), *work.given, work.pool);
}

// Of values that are not finite nothing is sent.
void LowRank::finish(bool finite, std::span<const float> factors, Payload out,
                     FactorSide side) const {
  const size_t bytes = bytes_of(layout_.floats(side));
  std::byte* const body = out.data() + sizeof(PayloadHeader);
  if (finite) {
    std::ranges::copy(std::as_bytes(factors), body + layout_.plain(side) * sizeof(float));
  } else {
    std::fill_n(body, bytes - sizeof(PayloadHeader), std::byte{0});
  }
  write_header(out, whole(), finite ? 0 : kFlagNonFinite, bytes, static_cast<uint32_t>(side));
}

void LowRank::write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                    const Work& work) {
  const FactorSide side = side_to_write(work);
  const cpu::LowRankInput input{g, e, layout_.matrices(), spec().choice.rank};
  Workspace::Frame frame(work.workspace);
  const auto factors = frame.take<float>(layout_.factors(side));
  if (begin_round(work)) {
    finish(send_factors(input, {}, factors, work), factors, out, side);
    return;
  }
  const bool plain = send_plain(input, e_next, out.data() + sizeof(PayloadHeader), work.pool);
  const bool kept = e_next.empty() || may_be_kept(work);
  finish(send_factors(input, e_next, factors, work) && plain && kept, factors, out, side);
}

// Where only what is left overflows, x has been taken from and nothing is flagged: the next step
// meets it.
void LowRank::write_accumulated(Residual x, Payload out, const Work& work) {
  const FactorSide side = side_to_write(work);
  const cpu::LowRankInput input{
      view_of(std::span<const float>(x)), {}, layout_.matrices(), spec().choice.rank};
  Workspace::Frame frame(work.workspace);
  const auto factors = frame.take<float>(layout_.factors(side));
  if (begin_round(work)) {
    finish(send_factors(input, {}, factors, work), factors, out, side);
    return;
  }
  const bool plain = send_plain(input, {}, out.data() + sizeof(PayloadHeader), work.pool);
  const bool finite = send_factors(input, {}, factors, work) && plain && may_be_kept(work);
  finish(finite, factors, out, side);
  if (!finite) {
    return;
  }
  for (const PlainRun& run : layout_.plain_runs()) {
    std::ranges::fill(x.subspan(run.offset, run.numel), 0.0f);
  }
  cpu::subtract_product(input, pair(side, factors.data()), x, work.pool);
}

// Whether the call writes a first payload, which takes nothing from x.
bool LowRank::begin_round(const Work& work) {
  if (!two_rounds()) {
    return false;
  }
  check(!work.second || first_in_ == work.step, spec().name, ": compress_second() in step ",
        work.step, " comes before take_first(), expected after");
  if (!work.second) {
    first_in_.reset();
  }
  return !work.second;
}

std::unique_ptr<ChunkedFormat> make_low_rank(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<LowRank>(spec, std::move(shape));
}

}  // namespace gradwire
