#pragma once
// A header that Debian's libgloo-dev leaves out, although those of Gloo's pairs include it. Of its
// classes only what goes into the size of others is here; it is inside libgloo that they work.

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

template <typename T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> ptr_;
};

template <typename T>
class ShareableNonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

}  // namespace gloo
