#pragma once
// Where the kernels of a step read gradients: in memory as they are, or, of payloads, in windows
// that a thread block makes in its shared memory as it comes to them.

#include "gradwire/kernels/ops/payload_read.cuh"
#include "gradwire/optimizers/step_memory.cuh"

namespace gradwire::cuda {

/// Elements of a window of payloads: 32 KiB, a piece for each warp.
inline constexpr unsigned kReadWindow = 8192;
static_assert(kStepBlock % kReadWindow == 0);

/// Whether the step has a gradient of it.
__device__ __forceinline__ bool is_present(const StepItem& item) {
  return item.gradient != nullptr || item.source != nullptr;
}

/// With windows nothing of it is kept in registers while they are made.
template <bool kReads, class T>
using ReadOnce = std::conditional_t<kReads, const T&, T>;

/// In memory: a window is a block.
template <bool kReads>
class Gradients {
 public:
  struct Room {};  // in shared memory
  __device__ __forceinline__ explicit Gradients(Room&) {}
  /// Calls body(first, count) for windows that tile elements [begin, begin + count), counted from
  /// there. By all threads of the block.
  template <class Body>
  __device__ __forceinline__ void for_each_window(const StepItem&, size_t, unsigned count,
                                                  const Body& body) {
    body(0u, count);
  }
  /// Elements from `first` of the parameter, which is `at` of the window; zeros behind the end.
  class Eight {
   public:
    __device__ __forceinline__ Eight(const Gradients&, const StepItem& item, size_t first,
                                     unsigned) {
      load_gradient(item, first, g_);
    }
    __device__ __forceinline__ float operator[](int k) const { return g_[k]; }

   private:
    float g_[kPerThread];
  };
  __device__ __forceinline__ float at(const StepItem& item, size_t i, unsigned) const {
    return gradient_at(item, i);
  }
};

/// Of either kind, in shared memory, and read from there as it is used: the registers are full.
template <>
class Gradients<true> {
 public:
  struct Room {
    float made[kReadWindow];
    ReadWindow window;
  };
  __device__ __forceinline__ explicit Gradients(Room& room) : room_(room) {}
  template <class Body>
  __device__ __forceinline__ void for_each_window(const StepItem& item, size_t begin,
                                                  unsigned count, const Body& body) {
#pragma unroll 1
    for (unsigned window = 0; window < count; window += kReadWindow) {
      const unsigned here = count - window < kReadWindow ? count - window : kReadWindow;
      __syncthreads();  // nobody reads what was there before
      if (threadIdx.x == 0) {
        room_.window.begin = static_cast<uint32_t>(item.source_begin + begin) + window;
        room_.window.count = here;
        room_.window.out = room_.made;
      }
      __syncthreads();
      if (item.source != nullptr) {
        read_sum(*item.source, room_.window);
      } else {
#pragma unroll 1
        for (unsigned i = threadIdx.x; i < here; i += kReadThreads) {
          room_.made[i] = gradient_at(item, begin + window + i);
        }
      }
      // What a warp may read behind the end.
      if (here + threadIdx.x < kReadWindow) {
        room_.made[here + threadIdx.x] = 0.0f;
      }
      __syncthreads();
      body(window, here);
    }
  }
  class Eight {
   public:
    __device__ __forceinline__ Eight(const Gradients& gradients, const StepItem&, size_t,
                                     unsigned at)
        : g_(gradients.room_.made + at) {}
    __device__ __forceinline__ float operator[](int k) const { return g_[k]; }

   private:
    const float* g_;
  };
  __device__ __forceinline__ float at(const StepItem&, size_t, unsigned at) const {
    return room_.made[at];
  }

 private:
  Room& room_;
};

}  // namespace gradwire::cuda
