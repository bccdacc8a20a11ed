#pragma once
// A group's payloads as Python holds them, and gradients that are read from there.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/bindings/parameter_shapes.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/kernels/compress/payload_sum.h"
#include "gradwire/optimizers/optimizer.h"

namespace gradwire::bindings {

/// Of a Reducer's, whose own are overwritten by the next step, copies in CPU memory; of a caller's
/// the arrays as they were given, which are viewed when a step reads them.
struct PayloadGroup {
  std::string spec;
  size_t offset = 0, numel = 0;
  std::vector<Segment> segments;  ///< whole parameters, by the plan's ids
  uint64_t seed = 0;
  float scale = 1;
  std::vector<std::vector<std::byte>> copies;
  std::vector<py::object> arrays;  ///< where there are no copies
};

/// What Python makes of payloads that came on another way. `parameters`: where each of `shapes` is
/// among an optimizer's. @throws InvalidArgument for what cannot be a group.
PayloadGroup payload_group(const std::string& spec, const std::vector<uint32_t>& parameters,
                           const Shapes& shapes, std::vector<py::object> payloads, float scale,
                           int64_t seed);

/// A group for one step, and where its payloads are.
struct PlacedGroup {
  const PayloadGroup* group = nullptr;
  std::vector<ConstPayload> parts;
};

/// With the GIL. What keeps arrays alive is added to `kept`; on a GPU the place's stream waits for
/// what others have still to write there. @throws InvalidArgument for payloads elsewhere.
std::vector<PlacedGroup> placed(const std::vector<const PayloadGroup*>& groups, const Place& place,
                                std::vector<Array>& kept);

/// Where parameters are for a step from payloads.
class PayloadPlaces {
 public:
  /// `places` with readers of the groups' payloads in the place of their parameters' gradients.
  /// Enqueues; the groups stay as they are for as long as the places are used, on a GPU until the
  /// stream has passed what reads them.
  /// @throws InvalidArgument for groups of other parameters, at once, and, from wait(), for
  /// payloads that do not decode; those of a GPU are told by take_fault().
  std::vector<Binding> open(const std::vector<PlacedGroup>& groups, std::vector<Binding> places,
                            Context& context);

  /// On a GPU waits. @returns what names the first payload that did not decode, once; empty: none.
  std::string take_fault(Context& context);

 private:
  /// What decodes a group's payloads; made once for groups that stay as they are.
  struct Source {
    Source(const PayloadGroup& group, Device device);
    bool is_of(const PayloadGroup& group) const;

    std::unique_ptr<Compressor> compressor;
    PayloadSum sum;
    std::vector<ConstPayload> parts;
  };

  void keep_fault(size_t group, Context& context);

  std::vector<std::unique_ptr<Source>> sources_;  // of the groups, in order
  std::string fault_;                             // of payloads, that is to be told
};

}  // namespace gradwire::bindings
