#pragma once
// What parameters, their places and their groups must be.

#include <string_view>
#include <vector>

#include "gradwire/optimizers/optimizer.h"

namespace gradwire {

/// Where the first of them with elements is; without any, the first.
Device device_of(const std::vector<Parameter>& parameters);
/// @throws InvalidArgument unless the two views fit each other and are in the device's memory; a
/// gradient may be left out.
void check_place(std::string_view parameter, const Binding& place, Device device);
/// @throws InvalidArgument unless value and gradient are float32: of local steps an inner one would
/// lose what the anchor has beyond 16 bits, and the difference sent with it.
void check_floats(std::string_view parameter, const Binding& place);
/// @throws InvalidArgument naming the field that is out of range.
void check_group(const ParamGroup& group, size_t index);

/// An update writes values while it reads gradients and other values: they must not share memory.
class DisjointMemory {
 public:
  explicit DisjointMemory(size_t parameters) { runs_.reserve(2 * parameters); }

  void clear() { runs_.clear(); }
  /// `parameter` lives until check().
  void add(std::string_view parameter, const Binding& place);
  /// @throws InvalidArgument naming two of those added since clear() that share memory.
  void check();

 private:
  struct Run {
    const std::byte *begin, *end;
    std::string_view parameter;
    bool written;
  };
  void add(std::string_view parameter, const ConstTensorView& view, bool written);

  std::vector<Run> runs_;
};

}  // namespace gradwire
