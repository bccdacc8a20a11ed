#pragma once
// Sums of a few numbers over ranks, in double: what optimizers of sliced parameters need of each
// other (StepOptions::add_up, and on_device.add_up on a GPU).

#include <memory>
#include <span>

#include "gradwire/comm/transport.h"

namespace gradwire {

class RankSum {
 public:
  /// Calls are collective, and in one order with all others on this transport, which outlives this.
  /// `most` numbers at once.
  RankSum(Transport& transport, size_t most);

  /// values[i] = the sum of all ranks' values[i], added in rank order: the same bits on every rank.
  /// Allocates nothing; the same number of values on all ranks. In CPU memory, over a transport of
  /// that.
  /// @throws TransportError as the transport does, InvalidArgument for more than `most` and for a
  /// transport of a GPU's memory.
  void operator()(std::span<double> values);

  /// The same of values in the memory of the stream's device. Over a transport of that GPU's memory
  /// it enqueues and does not wait, and a CUDA graph can capture it; failures surface as the
  /// transport's do. Over one of CPU memory the values travel through the host: it waits for the
  /// stream, and throws what the transport does.
  /// @throws InvalidArgument for more than `most` and for a transport of another GPU's memory.
  void operator()(std::span<double> values, Stream& stream);

 private:
  void check_count(std::span<const double> values) const;

  Transport& transport_;
  const Device device_;
  const size_t most_;
  const Buffer all_;  // in the transport's memory
  std::vector<size_t> lengths_;
  std::vector<double> on_host_;  // of a GPU's values, over a transport of CPU memory
  std::unique_ptr<Stream> inline_stream_;
  Workspace workspace_;
};

}  // namespace gradwire
