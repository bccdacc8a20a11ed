#pragma once
// powersgd on the CPU: low_rank.cc says what it is and writes payloads, low_rank_parts.cc has what
// becomes of received ones.

#include <mutex>
#include <optional>
#include <vector>

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/factor_layout.h"

namespace gradwire {

class LowRank final : public ChunkedFormat {
 public:
  LowRank(const CompressorSpec& spec, CompressorShape shape);

  FormatTraits traits() const override;
  size_t capacity_for(Region region) const override {
    return bytes_of(std::max(layout_.floats_in(region, FactorSide::kLeft),
                             layout_.floats_in(region, FactorSide::kRight)));
  }
  uint32_t last_variant() const override { return static_cast<uint32_t>(FactorSide::kRight); }

  std::vector<uint64_t> state() const override;
  void set_state(std::span<const uint64_t> state) override;
  void learn_from(std::span<const uint64_t> state) override { take_factors(state, false); }

 protected:
  void keep_learned() override;
  void forget_learned() override;
  void open_body(Part& part, PartName name, Workspace::Frame& frame,
                 ThreadPool& pool) const override;
  void add_chunk(const Part& part, size_t chunk, std::span<float> sum) const override;
  void add_part(const Part& part, Residual x, const Work& work) override;
  bool write_group(std::span<const Part> parts, const Sum& what, const Work& work) override;
  void write_first(std::span<const Part> parts, float scale, const Work& work) override;
  void check_first_part(const Part& part, uint32_t step) const override {
    check_sides({&part, 1}, FactorSide::kLeft, step);
  }
  void write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
             const Work& work) override;
  void write_accumulated(Residual x, Payload out, const Work& work) override;
  void write_slice(const Part& part, Region region, Payload out) const override;
  void write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                    Payload out, const Work& work) const override;

 private:
  static size_t bytes_of(size_t floats) { return sizeof(PayloadHeader) + floats * sizeof(float); }
  static FactorSide side_of(const Part& part) { return static_cast<FactorSide>(part.variant); }
  /// A group without a matrix has nothing to send in a first round.
  bool two_rounds() const { return spec().choice.rounds == 2 && !layout_.matrices().empty(); }
  bool begin_round(const Work& work);
  bool may_be_kept(const Work& work) const;
  /// What a call writes, and what received payloads hold by now.
  FactorSide side_to_write(const Work& work) const;
  FactorSide side_expected(uint32_t step) const;
  /// What the mean that a step decodes is of: the next step begins with it.
  FactorSide side_learned(uint32_t step) const;
  /// Takes over what a state says of these matrices; `all`: or throws, where one is missing.
  void take_factors(std::span<const uint64_t> state, bool all);
  /// What this step multiplies by: as the last step, or the first round, left it, or drawn.
  const float* basis(FactorSide side);
  /// The first basis of a side, made where it is needed first.
  std::span<const float> drawn(FactorSide side);
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
  void check_turn(uint32_t step) const;
  void check_sides(std::span<const Part> parts, FactorSide side, uint32_t step) const;

  const FactorLayout layout_;
  std::once_flag made_[2];
  std::vector<float> drawn_[2];
  std::vector<float> factors_, learned_;  // committed; of the step in progress
  std::vector<float> first_;              // orthonormal left factors, from the first round
  std::optional<FactorSide> held_;        // which side factors_ are
  std::optional<uint32_t> learned_in_;    // the step that learned_ is of
  std::optional<uint32_t> first_in_;      // the step that first_ is of
};

}  // namespace gradwire
