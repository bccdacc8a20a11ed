// dgc: deep gradient compression. The k largest of what a velocity has accumulated since an element was
// last sent; k falls in the warm-up (warmup.h). What is accumulated is the residual; internal/velocity.cc
// has the velocity. Lin et al., arXiv:1712.01887.
//   g' = g min(1, clip / (sqrt(world_size) |g|))      local clipping, |g| over the group
//   u' = momentum u + g',  x = e + u'                 momentum correction
//   D = x where chosen, 0 elsewhere,  e_next = x - D
//   u_next = 0 where chosen, else u'                  momentum factor masking

#include <algorithm>

#include "gradwire/kernels/compress/internal/selecting.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

std::vector<size_t> kept_in_stages(const CompressorSpec& spec, size_t numel) {
  std::vector<size_t> kept;
  for (uint32_t stage = 0; stage <= last_warmup_stage(spec); ++stage) {
    kept.push_back(kept_elements(density_in_stage(spec, stage), numel));
  }
  return kept;
}

class DeepGradientCompression final : public SelectingFormat {
 public:
  DeepGradientCompression(const CompressorSpec& spec, CompressorShape shape,
                          std::span<const size_t> kept)
      : SelectingFormat(spec, std::move(shape), kept), kept_(kept.begin(), kept.end()) {}

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

 private:
  const std::vector<size_t> kept_;  // of each variant
};

}  // namespace

std::unique_ptr<ChunkedFormat> make_dgc(const CompressorSpec& spec, CompressorShape shape) {
  const std::vector<size_t> kept = kept_in_stages(spec, shape.numel);
  return std::make_unique<DeepGradientCompression>(spec, std::move(shape), kept);
}

}  // namespace gradwire
