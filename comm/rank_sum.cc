#include "gradwire/comm/rank_sum.h"

#include <algorithm>
#include <cstring>

namespace gradwire {

RankSum::RankSum(Transport& transport, size_t most)
    : transport_(transport),
      most_(most),
      all_(static_cast<size_t>(transport.world_size()) * most * sizeof(double)),
      lengths_(static_cast<size_t>(transport.world_size())),
      stream_(make_inline_stream(1)) {
  check(transport.traits().device.type == DeviceType::kCpu,
        "rank_sum: the transport is of a GPU's memory, expected one of CPU memory");
}

void RankSum::operator()(std::span<double> values) {
  check(values.size() <= most_, "rank_sum: there are ", values.size(), " values, expected at most ",
        most_);
  const Parts all{all_, most_ * sizeof(double), lengths_};
  const size_t length = values.size_bytes();
  Context context{*stream_, workspace_};
  transport_.all_gather(length, std::as_bytes(values), all, {values.size(), "norms of slices"},
                        context);
  stream_->wait();
  std::ranges::fill(values, 0.0);
  for (size_t r = 0; r < lengths_.size(); ++r) {
    for (size_t i = 0; i < values.size(); ++i) {
      double value;
      std::memcpy(&value, all.part(r).data() + i * sizeof value, sizeof value);
      values[i] += value;
    }
  }
}

}  // namespace gradwire
