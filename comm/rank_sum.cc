#include "gradwire/comm/rank_sum.h"

#include <algorithm>

#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/ops/norms_cuda.h"

namespace gradwire {

RankSum::RankSum(Transport& transport, size_t most)
    : transport_(transport),
      device_(transport.traits().device),
      most_(most),
      all_(static_cast<size_t>(transport.world_size()) * most * sizeof(double), device_),
      lengths_(static_cast<size_t>(transport.world_size())),
      on_host_(device_.type == DeviceType::kCpu ? most : 0),
      inline_stream_(make_inline_stream(1)),
      workspace_(device_) {}

void RankSum::check_count(std::span<const double> values) const {
  check(values.size() <= most_, "rank_sum: there are ", values.size(), " values, expected at most ",
        most_);
}

void RankSum::operator()(std::span<double> values) {
  check(device_.type == DeviceType::kCpu, "rank_sum: the transport is of memory of ",
        name_of(device_), ", expected one of CPU memory, where the values are");
  check_count(values);
  const Parts all{all_.bytes(), most_ * sizeof(double), lengths_};
  const size_t length = values.size_bytes();
  Context context{*inline_stream_, workspace_};
  transport_.all_gather(length, std::as_bytes(values), all, {values.size(), "norms of slices"},
                        context);
  inline_stream_->wait();
  std::ranges::fill(values, 0.0);
  for (size_t r = 0; r < lengths_.size(); ++r) {
    const double* const part = all_.as<double>().data() + r * most_;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += part[i];
    }
  }
}

void RankSum::operator()(std::span<double> values, Stream& stream) {
  check_count(values);
  if (device_.type == DeviceType::kCpu) {
    const std::span<double> host = std::span(on_host_).first(values.size());
    copy_bytes(std::as_writable_bytes(host), {}, std::as_bytes(values), stream.device(), stream);
    stream.wait();
    (*this)(host);
    copy_bytes(std::as_writable_bytes(values), stream.device(), std::as_bytes(host), {}, stream);
    return;
  }
  check(stream.device() == device_, "rank_sum: the stream is of ", name_of(stream.device()),
        ", must be of ", name_of(device_), ", whose memory the transport takes");
  const size_t bytes = values.size_bytes();  // of each rank: whole strides travel
  const Parts all{all_.bytes().first(lengths_.size() * bytes), bytes, lengths_};
  Context context{stream, workspace_};
  transport_.all_gather(bytes, std::as_bytes(values), all, {values.size(), "norms of slices"},
                        context);
  cuda::add_parts(all_.as<double>().first(lengths_.size() * values.size()), values, stream);
}

}  // namespace gradwire
