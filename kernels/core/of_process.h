#pragma once
// Objects that a fork does not carry over: their threads stay behind, and connections would be used
// by two.

#include <unistd.h>

#include <memory>
#include <string_view>
#include <utility>

#include "gradwire/kernels/core/error.h"

namespace gradwire {

/// Which process made an object.
class OfProcess {
 public:
  bool here() const { return made_in_ == ::getpid(); }

  /// @throws InvalidArgument in a process forked from that one.
  void check_here(std::string_view what) const {
    if (!here()) [[unlikely]] {
      throw InvalidArgument(concat(what, ": made in process ", made_in_,
                                   ", which a fork does not carry over to ", ::getpid(),
                                   "; expected an object made in the process that uses it"));
    }
  }

  /// In a fork, where ending what is held would wait for threads that are not there and close
  /// connections under the other process, it is left alone until the process ends.
  template <class Holder>
  void let_go(Holder& held) const {
    if (!here()) {
      [[maybe_unused]] const auto* const left = new Holder(std::move(held));
    }
  }

 private:
  const pid_t made_in_ = ::getpid();
};

}  // namespace gradwire
