#pragma once
// The means of a few steps of a Reducer as one short text, to compare transports with each other.

#include <string>

#include "gradwire/comm/fingerprint.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {

/// Five steps of the model of reducer_case.h; the means must have the same bits on every transport.
inline std::string digest_of_steps(const std::string& spec, Transport& transport) {
  Reducer reducer(plan_of(spec), transport);
  uint64_t digest = kFnvBasis;
  for (int step = 0; step < 5; ++step) {
    hand_over(reducer, gradients(transport.rank(), step));
    reducer.wait();
    for (const auto& mean : means(reducer)) {
      digest = digest * 1099511628211ull ^ fnv1a(std::as_bytes(std::span(mean)));
    }
  }
  return concat("means ", digest);
}

}  // namespace gradwire::test
