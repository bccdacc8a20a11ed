#pragma once
// A transport as Python objects hold it.

#include <memory>
#include <mutex>
#include <string>

#include "gradwire/bindings/interruptible.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/bindings/worker.h"
#include "gradwire/comm/transport.h"
#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/core/of_process.h"

namespace gradwire::bindings {

/// A transport, the thread that calls being the one that works, until it is closed.
class BoundTransport {
 public:
  explicit BoundTransport(std::unique_ptr<Transport> transport)
      : name_(transport->name()),
        rank_(transport->rank()),
        world_size_(transport->world_size()),
        device_(transport->traits().device),
        old_ranks_(transport->old_ranks().begin(), transport->old_ranks().end()),
        transport_(std::move(transport)) {}
  ~BoundTransport() { process_.let_go(transport_); }
  BoundTransport(const BoundTransport&) = delete;
  BoundTransport& operator=(const BoundTransport&) = delete;

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  Device device() const { return device_; }
  const std::vector<int>& old_ranks() const { return old_ranks_; }

  /// @throws InvalidArgument when it has been closed, and in a forked process.
  std::shared_ptr<Transport> get() {
    process_.check_here(name_);
    std::lock_guard lock(mutex_);
    check(transport_ != nullptr, name_, ": the transport has been closed, must be open");
    return transport_;
  }

  /// For what hands it arrays. @throws InvalidArgument also where it carries memory of a GPU.
  std::shared_ptr<Transport> get_for_arrays() {
    std::shared_ptr<Transport> transport = get();
    check(device_.type == DeviceType::kCpu, name_, ": carries memory of ", name_of(device_),
          ", expected a transport of CPU memory for arrays (a Reducer works over both)");
    return transport;
  }

  /// Nothing, once it has been closed, and in a forked process.
  std::shared_ptr<Transport> get_if_open() {
    std::lock_guard lock(mutex_);
    return process_.here() ? transport_ : nullptr;
  }

  /// Likewise.
  std::shared_ptr<Transport> take() {
    std::lock_guard lock(mutex_);
    process_.let_go(transport_);
    return std::move(transport_);
  }

  /// Runs work(context) with `transport`, which is this one's, as Worker::run() does. Ctrl-C ends a
  /// wait for other ranks, and the group with it.
  template <class Work>
  void work(const std::shared_ptr<Transport>& transport, const Work& work) {
    interruptible([&](Interruptible& guard) {
      guard.over(transport);
      worker_.run(work);
    });
  }

 private:
  const OfProcess process_;
  const std::string name_;
  const int rank_, world_size_;
  const Device device_;
  const std::vector<int> old_ranks_;
  std::mutex mutex_;
  std::shared_ptr<Transport> transport_;
  Worker worker_{1};
};

}  // namespace gradwire::bindings
