#include "gradwire/comm/internal/add_shards.h"

#include <algorithm>

#include "gradwire/kernels/core/stream.h"

namespace gradwire {

// Blocks that stay in the first-level cache while all ranks are added to them.
void add_shards(const Shards& shards, std::span<float> out, Context& context) {
  constexpr size_t kBlock = 4096;
  const size_t blocks = (out.size() + kBlock - 1) / kBlock;
  struct Work {
    const Shards& shards;
    std::span<float> out;
  } work{shards, out};
  context.stream.pool().parallel_for(blocks, [&work](size_t block) {
    const size_t begin = block * kBlock, end = std::min(begin + kBlock, work.out.size());
    float sum[kBlock];
    for (int r = 0; r < work.shards.world_size; ++r) {
      const float* part =
          r == work.shards.rank
              ? work.shards.own.data() + begin
              : work.shards.others.data() + static_cast<size_t>(r) * work.out.size() + begin;
      for (size_t i = 0; i < end - begin; ++i) {
        sum[i] = r == 0 ? part[i] : sum[i] + part[i];
      }
    }
    std::copy(sum, sum + (end - begin), work.out.data() + begin);
  });
}

}  // namespace gradwire
