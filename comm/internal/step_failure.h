#pragma once
// The first failure of a step, which ends the group.

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "gradwire/kernels/core/error.h"

namespace gradwire {

/// Set by whichever thread fails first; the failures that follow from it are not told. The caller
/// hears of it when nothing is on its way any more, and again in each later call.
class StepFailure {
 public:
  bool is_set() const { return set_; }

  /// Calls end(reason) if this failure is the first. From any thread.
  template <class End>
  void set(TransportError error, const End& end) {
    const std::lock_guard lock(mutex_);
    if (!first_) {
      first_.emplace(std::move(error));
      set_ = true;
      end(first_->what());
    }
  }

  bool is_reported() const { return reported_; }
  void throw_if_reported() const {
    if (reported_) {
      throw *first_;
    }
  }
  /// Throws the failure, if there was one, and remembers that.
  void report() {
    reported_ = set_;
    throw_if_reported();
  }
  void forget() {
    first_.reset();
    set_ = reported_ = false;
  }

 private:
  std::mutex mutex_;  // guards first_ while threads run
  std::optional<TransportError> first_;
  std::atomic<bool> set_{false};
  bool reported_ = false;
};

}  // namespace gradwire
