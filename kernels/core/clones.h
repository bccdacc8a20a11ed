#pragma once
// GRADWIRE_CLONES before a hot function compiles it once per x86-64 level; the loader picks one.
// Bits do not depend on the choice: no multiply-add is contracted and sums have a fixed order.

#include <cstddef>  // defines __GLIBC__: the choice needs the GNU loader's ifunc

// Sanitizer runtimes are not ready when the loader runs ifunc resolvers.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define GRADWIRE_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GRADWIRE_SANITIZED 1
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__CUDACC__) && \
    !defined(GRADWIRE_SANITIZED) && !defined(GRADWIRE_NO_CLONES)
#define GRADWIRE_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GRADWIRE_CLONES
#endif
