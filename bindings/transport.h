#pragma once
// A transport as Python objects hold it.

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <string>

#include "gradwire/bindings/worker.h"
#include "gradwire/comm/transport.h"

namespace gradwire::bindings {

/// A transport, the thread that calls being the one that works, until it is closed.
class BoundTransport {
 public:
  explicit BoundTransport(std::unique_ptr<Transport> transport)
      : name_(transport->name()),
        rank_(transport->rank()),
        world_size_(transport->world_size()),
        old_ranks_(transport->old_ranks().begin(), transport->old_ranks().end()),
        transport_(std::move(transport)) {}

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::vector<int>& old_ranks() const { return old_ranks_; }

  /// @throws InvalidArgument when it has been closed.
  std::shared_ptr<Transport> get() {
    std::lock_guard lock(mutex_);
    check(transport_ != nullptr, name_, ": the transport has been closed, must be open");
    return transport_;
  }

  /// Nothing, once it has been closed.
  std::shared_ptr<Transport> get_if_open() {
    std::lock_guard lock(mutex_);
    return transport_;
  }

  std::shared_ptr<Transport> take() {
    std::lock_guard lock(mutex_);
    return std::move(transport_);
  }

  Worker& worker() { return worker_; }

 private:
  const std::string name_;
  const int rank_, world_size_;
  const std::vector<int> old_ranks_;
  std::mutex mutex_;
  std::shared_ptr<Transport> transport_;
  Worker worker_{1};
};

}  // namespace gradwire::bindings
