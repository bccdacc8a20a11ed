#pragma once
// Numbers that are made as they are read: what is told apart only in pieces never lies in memory as
// a whole.

#include <cstddef>
#include <span>

namespace gradwire {

class ElementReader {
 public:
  virtual ~ElementReader() = default;
  virtual size_t numel() const = 0;
  /// out[i] = element begin + i, the same bits in whatever pieces. On any number of threads at
  /// once.
  virtual void read(size_t begin, std::span<float> out) const = 0;
  /// Whether all of these elements are zero, where that is known without reading them.
  virtual bool known_zero(size_t /*begin*/, size_t /*count*/) const { return false; }
};

}  // namespace gradwire
