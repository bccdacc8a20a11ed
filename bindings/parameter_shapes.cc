#include "gradwire/bindings/parameter_shapes.h"

#include <string>

#include "gradwire/kernels/compress/segments.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire::bindings {
namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace

std::vector<Segment> segments_of(const Shapes& shapes) {
  std::vector<Segment> segments;
  for (uint32_t p = 0; p < shapes.size(); ++p) {
    const std::vector<int64_t>& shape = shapes[p];
    const std::vector<size_t> extents(shape.begin(), shape.end());
    size_t product = 1;
    for (const int64_t extent : shape) {
      check(extent >= 1, "shapes[", p, "]: is ", text_of(shape),
            ", must hold integers from 1 on alone");
      check(static_cast<size_t>(extent) <= kMostNumel / product, "shapes[", p, "]: is ",
            text_of(shape), ", must have at most ", kMostNumel, " elements");
      product *= static_cast<size_t>(extent);
    }
    segments.push_back(whole_parameter(p, extents));
  }
  return segments;
}

}  // namespace gradwire::bindings
