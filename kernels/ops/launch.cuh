#pragma once
// What every kernel source begins with: shared memory and launches, written so that the same text
// runs on a GPU and in the emulator of tests/simt (GRADWIRE_SIMT), where shared memory lies on the
// heap and a launch is a call.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "gradwire/kernels/core/stream.h"

#if defined(GRADWIRE_SIMT)

#define GRADWIRE_STRINGIFY_(x) #x
#define GRADWIRE_STRINGIFY(x) GRADWIRE_STRINGIFY_(x)
#define GRADWIRE_SHARED(name, ...)                                                         \
  auto& name = *static_cast<std::type_identity_t<__VA_ARGS__>*>(                           \
      ::gradwire::simt::shared_memory(__FILE__ ":" GRADWIRE_STRINGIFY(__LINE__) " " #name, \
                                      sizeof(std::type_identity_t<__VA_ARGS__>)))
#define GRADWIRE_DYNAMIC_SHARED(name, ...) \
  auto* const name = static_cast<__VA_ARGS__*>(::gradwire::simt::dynamic_shared_memory())

#else

#include <cuda_runtime.h>

#include "gradwire/kernels/core/internal/cuda_call.h"

/// GRADWIRE_SHARED(name, type): an uninitialised object of the block's shared memory.
#define GRADWIRE_SHARED(name, ...) __shared__ std::type_identity_t<__VA_ARGS__> name
/// GRADWIRE_DYNAMIC_SHARED(name, type): a pointer to what LaunchShape::dynamic_shared_bytes gave.
#define GRADWIRE_DYNAMIC_SHARED(name, ...)                        \
  extern __shared__ __align__(16) unsigned char gradwire_shared[]; \
  auto* const name = reinterpret_cast<__VA_ARGS__*>(gradwire_shared)
#endif

namespace gradwire::cuda {

struct LaunchShape {
  size_t blocks;
  unsigned threads;
  Stream& stream;
  size_t dynamic_shared_bytes = 0;  ///< of a block, at most 48 KiB
};

/// @throws InvalidArgument unless `stream` is a CUDA stream.
inline void check_cuda_stream(const char* op, const Stream& stream) {
  check(stream.device().type == DeviceType::kCuda, op,
        ": the stream is a CPU stream, must be a CUDA stream");
}

/// Enqueues kernel(args...); GRADWIRE_LAUNCH adds the name. No blocks: nothing to do.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape,
            std::type_identity_t<Parameters>... args) {
  check(shape.blocks <= std::numeric_limits<int32_t>::max(), name, ": ", shape.blocks,
        " blocks, must be at most 2147483647");
  check(shape.dynamic_shared_bytes <= 48 * 1024, name, ": ", shape.dynamic_shared_bytes,
        " bytes of dynamic shared memory, must be at most 49152");
  if (shape.blocks == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>(shape.blocks);
#if defined(GRADWIRE_SIMT)
  simt::enqueue(shape.stream.native_handle(),
                {.kernel = name,
                 .grid = blocks,
                 .block = shape.threads,
                 .dynamic_shared_bytes = shape.dynamic_shared_bytes},
                [kernel, args...] { kernel(args...); });
#else
  const DeviceScope scope(shape.stream.device().index, name);  // a launch goes to the current GPU
  kernel<<<blocks, shape.threads, shape.dynamic_shared_bytes,
           static_cast<cudaStream_t>(shape.stream.native_handle())>>>(args...);
  check_call(cudaGetLastError(), name, "kernel launch");
#endif
}

/// A kernel with template arguments stands in parentheses.
#define GRADWIRE_LAUNCH(kernel, shape, ...) \
  ::gradwire::cuda::launch(#kernel, kernel, shape, __VA_ARGS__)

}  // namespace gradwire::cuda
