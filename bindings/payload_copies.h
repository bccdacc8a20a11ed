#pragma once
// A group's payloads as Python holds them, and gradients that are read from there.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/kernels/compress/payload_sum.h"
#include "gradwire/optimizers/optimizer.h"

namespace gradwire::bindings {

/// Copied: the reducer's own are overwritten by the next step.
struct PayloadCopies {
  std::string spec;
  size_t offset = 0, numel = 0;
  std::vector<Segment> segments;  ///< whole parameters, by the plan's ids
  uint64_t seed = 0;
  float scale = 1;
  std::vector<std::vector<std::byte>> parts;
};

/// Where parameters are for a step from payloads.
class PayloadPlaces {
 public:
  /// `places` with readers of the groups' payloads in the place of their parameters' gradients.
  /// Enqueues; the groups stay as they are for as long as the places are used.
  /// @throws InvalidArgument for groups of other parameters, at once, and, from wait(), for
  /// payloads that do not decode.
  std::vector<Binding> open(const std::vector<const PayloadCopies*>& groups,
                            std::vector<Binding> places, Context& context);

 private:
  /// What decodes a group's payloads; made once for groups that stay as they are.
  struct Source {
    explicit Source(const PayloadCopies& group);
    bool is_of(const PayloadCopies& group) const;

    std::unique_ptr<Compressor> compressor;
    PayloadSum sum;
    std::vector<ConstPayload> parts;
  };

  std::vector<std::unique_ptr<Source>> sources_;  // of the groups, in order
};

}  // namespace gradwire::bindings
