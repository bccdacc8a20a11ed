#include "gradwire/comm/internal/add_shards.h"

#include <algorithm>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/elementwise.h"

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
    const auto part = [&](int r) {
      const float* const all = r == work.shards.rank ? work.shards.own.data()
                                                     : work.shards.others.data() +
                                                           static_cast<size_t>(r) * work.out.size();
      return std::span(all + begin, end - begin);
    };
    float between[kBlock];
    const std::span<float> sum(between, end - begin);
    const std::span<float> written = work.out.subspan(begin, sum.size());
    const int last = work.shards.world_size - 1;
    std::span<const float> so_far = part(0);
    for (int r = 1; r <= last; ++r) {
      // The last term writes the result: by then `own`, which may lie there, has been read.
      const std::span<float> to = r == last ? written : sum;
      cpu::add(so_far, part(r), to);
      so_far = to;
    }
    if (last == 0) {
      std::ranges::copy(so_far, written.begin());
    }
  });
}

}  // namespace gradwire
