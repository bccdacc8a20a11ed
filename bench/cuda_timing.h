#pragma once
// How cuda_bench times work on a GPU: as a CUDA graph, so that the host's launches do not count
// (peers that wait for the device inside cannot be captured and are timed as they are), over
// several sets of memory in turn, so that no cache keeps an input; medians of CUDA events.

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire::bench {

inline void check_cuda(cudaError_t code, const char* call) {
  if (code != cudaSuccess) {
    throw DeviceError(
        concat(call, " failed: ", cudaGetErrorName(code), ", ", cudaGetErrorString(code)));
  }
}

inline constexpr Device kGpu{DeviceType::kCuda, 0};
inline constexpr int kSets = 3;

/// Enqueues the work on memory set `set` (0 to kSets - 1).
using Work = std::function<void(int set)>;

/// kGraph: the work can be captured after two calls.
enum class Launch { kGraph, kEager };

class Timer {
 public:
  Timer(Stream& stream, int repeats)
      : stream_(static_cast<cudaStream_t>(stream.native_handle())), repeats_(repeats) {
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Timer() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Median milliseconds on the device. @throws DeviceError, also for work that cannot be captured.
  double median_ms(const Work& work, Launch launch) {
    std::vector<Graph> graphs(kSets);
    for (int set = 0; set < kSets; ++set) {
      for (int warm_up = 0; warm_up < 2; ++warm_up) {
        work(set);
        check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      }
      if (launch == Launch::kGraph) {
        graphs[static_cast<size_t>(set)].capture(stream_, [&] { work(set); });
      }
    }
    std::vector<double> times;
    for (int i = 0; i < repeats_ + kSets; ++i) {
      const int set = i % kSets;
      check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
      if (launch == Launch::kGraph) {
        check_cuda(cudaGraphLaunch(graphs[static_cast<size_t>(set)].executable, stream_),
                   "cudaGraphLaunch");
      } else {
        work(set);
      }
      check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
      check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
      float ms = 0;
      check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
      if (i >= kSets) {  // the first round uploads the graphs
        times.push_back(ms);
      }
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
  }

 private:
  struct Graph {
    cudaGraphExec_t executable = nullptr;

    template <class F>
    void capture(cudaStream_t stream, F&& enqueue) {
      cudaGraph_t graph = nullptr;
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                 "cudaStreamBeginCapture");
      try {
        enqueue();
      } catch (...) {
        (void)cudaStreamEndCapture(stream, &graph);
        (void)cudaGraphDestroy(graph);
        (void)cudaGetLastError();
        throw;
      }
      check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
      const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
      (void)cudaGraphDestroy(graph);
      check_cuda(code, "cudaGraphInstantiate");
    }
    Graph() = default;
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    Graph(Graph&& other) noexcept : executable(std::exchange(other.executable, nullptr)) {}
    ~Graph() {
      if (executable != nullptr) {
        (void)cudaGraphExecDestroy(executable);
      }
    }
  };

  cudaStream_t stream_;
  int repeats_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// One row of the table: what ran, and the bytes that nobody can avoid.
struct Row {
  std::string op{};
  std::string by;  ///< gradwire, or whose way of doing the same
  size_t numel = 0;
  double bytes = 0;
  double goal = 0;  ///< of floor / time; 0: none
  double ms = 0;
  std::string absent{};  ///< why it did not run
};

}  // namespace gradwire::bench
