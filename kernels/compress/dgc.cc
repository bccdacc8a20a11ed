// dgc: deep gradient compression. The k largest of what a velocity has accumulated since an element was
// last sent; k falls in the warm-up (warmup.h). What is accumulated is the residual; the velocity is
// the compressor's own and commits with it. Lin et al., arXiv:1712.01887.
//   g' = g min(1, clip / (sqrt(world_size) |g|))      local clipping, |g| over the group
//   u' = momentum u + g',  x = e + u'                 momentum correction
//   D = x where chosen, 0 elsewhere,  e_next = x - D
//   u_next = 0 where chosen, else u'                  momentum factor masking

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "gradwire/kernels/compress/internal/dgc.h"
#include "gradwire/kernels/compress/internal/factories.h"
#include "gradwire/kernels/compress/internal/selecting.h"
#include "gradwire/kernels/compress/warmup.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/clip.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

std::vector<size_t> kept_in_stages(const CompressorSpec& spec, size_t numel) {
  std::vector<size_t> kept;
  for (uint32_t stage = 0; stage <= last_warmup_stage(spec); ++stage) {
    kept.push_back(kept_elements(density_in_stage(spec, stage), numel));
  }
  return kept;
}

class DeepGradientCompression final : public SelectingCompressor {
 public:
  DeepGradientCompression(const CompressorSpec& spec, CompressorShape shape,
                          std::span<const size_t> kept)
      : SelectingCompressor(spec, std::move(shape), kept),
        kept_(kept.begin(), kept.end()) {}

  size_t kept_bytes() const override { return 2 * shape().numel * sizeof(float); }
  void commit() override {
    SelectingCompressor::commit();
    if (std::exchange(pending_, false)) {
      std::swap(velocity_, next_);
    }
  }
  void set_step(uint32_t step) override {
    SelectingCompressor::set_step(step);
    std::ranges::fill(velocity_.as<float>(), 0.0f);
    pending_ = false;
  }
  /// The velocity's floats, two a word; no words where it is all zeros.
  std::vector<uint64_t> state() const override;
  void set_state(std::span<const uint64_t> state) override;

 protected:
  size_t most_entries(Scope scope) const override {
    return std::min(kept_[scope.variant], scope.region.numel());
  }
  cpu::Selection choose(cpu::SelectInput input, Scope scope, Workspace::Frame& frame,
                        ThreadPool& pool) const override {
    input.k =
        kept_elements(density_in_stage(spec(), scope.variant), scope.region.numel());
    return cpu::select_largest(input, frame, pool);
  }
  uint32_t variant_in(uint32_t step) const override { return warmup_stage(spec(), step); }
  ConstGradient input(ConstGradient g, const Work& work) override;
  cpu::Selection choose_in_step(cpu::SelectInput input, Workspace::Frame& frame,
                                const Work& work) override;

 private:
  /// Plans make compressors only to ask for their capacity.
  void make_room() {
    if (velocity_.size_bytes() == 0) {
      velocity_ = Buffer(shape().numel * sizeof(float));
      next_ = Buffer(shape().numel * sizeof(float));
    }
  }
  /// What clipping multiplies the gradient by.
  float factor_of(ConstGradient g, const Work& work) const;
  /// next_ = momentum velocity_ + g'.
  void accelerate(ConstGradient g, float factor, ThreadPool& pool);

  const std::vector<size_t> kept_;  // of each variant
  Buffer velocity_;                 // committed; none: all zeros
  Buffer next_;                     // what the last compress() made of it
  bool pending_ = false;            // next_ is of a compress() since the last commit
};

float DeepGradientCompression::factor_of(ConstGradient g, const Work& work) const {
  if (spec().clip == 0) {
    return 1.0f;
  }
  Workspace::Frame frame(work.workspace);
  return cpu::clip_factor(g, clip_limit(spec(), shape().world_size),
                          frame.take<double>(chunks_of(g.numel)), work.pool);
}

void DeepGradientCompression::accelerate(ConstGradient g, float factor, ThreadPool& pool) {
  const auto momentum = static_cast<float>(spec().momentum);
  cpu::for_each_chunk(pool, chunks_of(g.numel), [&](size_t chunk) {
    const Region region = region_of(chunk);
    alignas(64) float values[kChunk];
    const std::span<float> x(values, region.numel());
    const std::span<float> next = next_.as<float>().subspan(region.begin, region.numel());
    cpu::widen(g.subview(region.begin, region.numel()), x);
    cpu::multiply(x, factor, x);
    cpu::multiply(velocity_.as<float>().subspan(region.begin, region.numel()), momentum, next);
    cpu::add(next, x, next);
  });
}

ConstGradient DeepGradientCompression::input(ConstGradient g, const Work& work) {
  make_room();
  pending_ = true;
  accelerate(g, factor_of(g, work), work.pool);
  return view_of(std::span<const float>(next_.as<float>()));
}

cpu::Selection DeepGradientCompression::choose_in_step(cpu::SelectInput input,
                                                       Workspace::Frame& frame, const Work& work) {
  const cpu::Selection chosen = choose(input, {whole(), variant_in(work.step)}, frame, work.pool);
  const std::span<float> next = next_.as<float>();
  cpu::for_each_chunk(work.pool, chosen.chunks.size(), [&](size_t chunk) {
    const auto [first, count] = chosen.chunks[chunk];
    for (const uint16_t index : chosen.indices.subspan(first, count)) {
      next[chunk * kChunk + index] = 0.0f;
    }
  });
  return chosen;
}

std::vector<uint64_t> DeepGradientCompression::state() const {
  const std::span<const float> u = velocity_.as<float>();
  if (std::ranges::all_of(u, [](float x) { return x == 0; })) {
    return {};
  }
  std::vector<uint64_t> words((u.size() + 1) / 2);
  for (size_t i = 0; i < u.size(); ++i) {
    words[i / 2] |= uint64_t{std::bit_cast<uint32_t>(u[i])} << (i % 2 * 32);
  }
  return words;
}

void DeepGradientCompression::set_state(std::span<const uint64_t> state) {
  const size_t words = (shape().numel + 1) / 2;
  check(state.empty() || state.size() == words, "dgc: its state has ", state.size(),
        " words, expected ", words, " or none");
  std::vector<float> read(shape().numel);
  for (size_t i = 0; i < read.size() && !state.empty(); ++i) {
    read[i] = std::bit_cast<float>(static_cast<uint32_t>(state[i / 2] >> (i % 2 * 32)));
    check(std::isfinite(read[i]), "dgc: its velocity at element ", i, " is ", read[i],
          ", must be finite");
  }
  make_room();
  std::ranges::copy(read, velocity_.as<float>().begin());
  pending_ = false;
}

}  // namespace

std::unique_ptr<Compressor> make_dgc(const CompressorSpec& spec, CompressorShape shape) {
  const std::vector<size_t> kept = kept_in_stages(spec, shape.numel);
  return std::make_unique<DeepGradientCompression>(spec, std::move(shape), kept);
}

}  // namespace gradwire
