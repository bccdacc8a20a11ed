// threshold: every element of g + e whose magnitude reaches tau, about k = max(1, ceil(density *
// n)) of them and at most k + ceil(k / 4). tau is what the k largest reached in some step before, moved
// when too many or too few pass; ops/threshold_state.h has the rule. What finds no room stays in
// the residual. Li and Hoefler (Ok-Topk), arXiv:2201.07598.
//   D = values of the chosen elements, 0 elsewhere;   e_next = (g + e) - D

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "gradwire/kernels/compress/internal/selecting.h"
#include "gradwire/kernels/ops/threshold_state.h"

namespace gradwire {
namespace {

class Threshold final : public SelectingFormat {
 public:
  Threshold(const CompressorSpec& spec, CompressorShape shape)
      : SelectingFormat(spec, shape, capacity_of(spec, shape.numel)),
        kept_(kept_elements(spec.choice.density, shape.numel)),
        capacity_(capacity_of(spec, shape.numel)) {}

  std::vector<uint64_t> state() const override {
    return {std::bit_cast<uint32_t>(state_.tau), state_.age};
  }
  void set_state(std::span<const uint64_t> state) override {
    check(state.size() == 2, "threshold: its state has ", state.size(), " words, expected 2");
    constexpr auto kLargest = std::bit_cast<uint32_t>(std::numeric_limits<float>::max());
    check(state[0] <= kLargest, "threshold: the state's word of tau is ", state[0],
          ", must be the bits of a float32, 0 or positive and finite: at most ", kLargest);
    check(state[1] <= kThresholdMaxAge, "threshold: the state's age is ", state[1],
          " steps, must be at most ", kThresholdMaxAge);
    state_ = next_ = {std::bit_cast<float>(static_cast<uint32_t>(state[0])),
                      static_cast<uint32_t>(state[1])};
  }

 protected:
  void keep_learned() override { state_ = next_; }
  void forget_learned() override { state_ = next_ = {}; }
  size_t most_entries(Scope scope) const override {
    return std::min(capacity_, scope.region.numel());
  }
  /// A merge has no threshold of its own: the k largest, exactly.
  cpu::Selection choose(cpu::SelectInput input, Scope scope, Workspace::Frame& frame,
                        ThreadPool& pool) const override {
    input.k = kept_elements(spec().choice.density, scope.region.numel());
    return cpu::select_largest(input, frame, pool);
  }
  cpu::Selection choose_in_step(cpu::SelectInput input, Workspace::Frame& frame,
                                const Work& work) override;

  // What does not reach the threshold is smaller, and smaller than what is sent; what finds no room
  // need not be.
  bool bounds_its_rest(const Part& part) const override {
    size_t sent = 0;
    for (const ChunkPlace& place : part.places) {
      sent += place.count;
    }
    const bool all_fit = sent < capacity_ || capacity_ >= shape().numel;
    return all_fit && (sent > 0 || searches_exactly(state_) || state_.tau < 0x1p126f);
  }

 private:
  static size_t capacity_of(const CompressorSpec& spec, size_t numel) {
    return threshold_capacity(numel, kept_elements(spec.choice.density, numel));
  }

  const size_t kept_;
  const size_t capacity_;
  ThresholdState state_;  // committed
  ThresholdState next_;   // what the last compress() would make of it
};

cpu::Selection Threshold::choose_in_step(cpu::SelectInput input, Workspace::Frame& frame,
                                         const Work& work) {
  next_ = state_;
  if (searches_exactly(state_)) {
    const cpu::Selection chosen = choose(input, {whole(), 0}, frame, work.pool);
    if (chosen.finite) {
      float smallest = std::numeric_limits<float>::infinity();
      for (const cpu::Selection::Chunk& chunk : chosen.chunks) {
        for (const float x : chosen.values.subspan(chunk.first, chunk.count)) {
          smallest = std::min(smallest, std::abs(x));
        }
      }
      next_ = after_exact_search(smallest, chosen.total, kept_);
    }
    return chosen;
  }
  const cpu::Reach reach{.threshold = state_.tau,
                         .capacity = capacity_,
                         .first_chunk = first_chunk_taken(work.step, chunks_of(input.g.numel))};
  const cpu::Reached reached = cpu::select_reaching(input, reach, frame, work.pool);
  if (reached.chosen.finite) {
    next_ = after_reuse(state_, reached.count, kept_);
  }
  return reached.chosen;
}

}  // namespace

std::unique_ptr<ChunkedFormat> make_threshold(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<Threshold>(spec, std::move(shape));
}

}  // namespace gradwire
