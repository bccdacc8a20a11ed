#pragma once
// Numbers that are made as they are read: what is told apart only in pieces never lies in memory as
// a whole.

#include <cstddef>
#include <span>

#include "gradwire/kernels/core/tensor.h"

namespace gradwire::cuda {
struct PayloadSource;
}

namespace gradwire {

class ElementReader {
 public:
  virtual ~ElementReader() = default;
  virtual size_t numel() const = 0;
  /// Where elements are made: on a GPU by the kernels that need them, from on_device().
  virtual Device device() const { return {}; }
  /// out[i] = element begin + i, the same bits in whatever pieces. On any number of threads at
  /// once.
  virtual void read(size_t begin, std::span<float> out) const = 0;
  /// Whether all of these elements are zero, where that is known without reading them.
  virtual bool known_zero(size_t /*begin*/, size_t /*count*/) const { return false; }
  /// In that GPU's memory, at one place as long as the reader lives; null on the CPU.
  virtual const cuda::PayloadSource* on_device() const { return nullptr; }
};

}  // namespace gradwire
