#pragma once
// Sums of a few numbers over ranks, in double: what optimizers of sliced parameters need of each
// other (StepOptions::add_up).

#include <memory>
#include <span>

#include "gradwire/comm/transport.h"

namespace gradwire {

class RankSum {
 public:
  /// Calls are collective, and in one order with all others on this transport, which is in CPU
  /// memory and outlives this. `most` numbers at once.
  /// @throws InvalidArgument for a transport of a GPU's memory.
  RankSum(Transport& transport, size_t most);

  /// values[i] = the sum of all ranks' values[i], added in rank order: the same bits on every rank.
  /// Allocates nothing; the same number of values on all ranks.
  /// @throws TransportError as the transport does, InvalidArgument for more than `most`.
  void operator()(std::span<double> values);

 private:
  Transport& transport_;
  const size_t most_;
  std::vector<std::byte> all_;
  std::vector<size_t> lengths_;
  std::unique_ptr<Stream> stream_;
  Workspace workspace_;
};

}  // namespace gradwire
