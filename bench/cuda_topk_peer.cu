// CUB's DeviceTopK and a scatter, beside gradwire's exact top-k with error feedback: a program of
// its own, because its headers are newer than the toolkit's (nvidia-cuda-cccl of the Python index).
//
//   cuda_topk_peer [--numel N]... [--repeats N] [--json FILE]
//
// g + e and its magnitudes; MaxPairs of (magnitude, index), unsorted and in no certain order; the
// values are gathered and the residual is zero where they were. Rows are named as cuda_bench's.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <system_error>

#include <cub/device/device_topk.cuh>
#include <cuda/iterator>
#include <cuda/stream_ref>

#include "bench/cuda_normal.h"
#include "bench/cuda_timing.h"
#include "gradwire/kernels/core/internal/new_file.h"

namespace gradwire::bench {
namespace {

constexpr unsigned kThreads = 256;

unsigned blocks_for(size_t numel) {
  return static_cast<unsigned>((numel + kThreads - 1) / kThreads);
}

__global__ void add_and_measure(const float* g, const float* e, float* sum, uint32_t* magnitudes,
                                size_t n) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) {
    sum[i] = g[i] + e[i];
    magnitudes[i] = __float_as_uint(sum[i]) & 0x7FFFFFFFu;
  }
}

__global__ void scatter(float* sum, const uint32_t* indices, float* values, size_t k) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < k) {
    values[i] = sum[indices[i]];
    sum[indices[i]] = 0.0f;
  }
}

/// Gradients, residuals and what the chain writes, for one size.
struct Memory {
  Memory(size_t n, cudaStream_t stream) : numel(n) {
    for (uint32_t i = 0; i < kSets * 2; ++i) {
      inputs.emplace_back(n * 4, kGpu);
      fill_normal<<<static_cast<unsigned>((n + kFillThreads - 1) / kFillThreads), kFillThreads, 0,
                    stream>>>(inputs.back().as<float>().data(), n, i);
      check_cuda(cudaGetLastError(), "fill_normal");
    }
    for (Buffer* buffer : {&sum, &magnitudes, &top, &indices, &values}) {
      *buffer = Buffer(n * 4, kGpu);
    }
  }
  const float* input(int set, int which) const {
    return inputs[static_cast<size_t>(2 * set + which)].as<float>().data();
  }
  size_t numel;
  std::vector<Buffer> inputs;
  Buffer sum, magnitudes, top, indices, values, scratch;
};

cudaError_t max_pairs(Memory& m, void* scratch, size_t& bytes, size_t k, cudaStream_t stream) {
  const auto wanted = ::cuda::execution::require(::cuda::execution::determinism::not_guaranteed,
                                                 ::cuda::execution::output_ordering::unsorted);
  return cub::DeviceTopK::MaxPairs(
      scratch, bytes, m.magnitudes.as<uint32_t>().data(), m.top.as<uint32_t>().data(),
      ::cuda::counting_iterator<uint32_t>(0), m.indices.as<uint32_t>().data(),
      static_cast<int64_t>(m.numel), static_cast<int64_t>(k),
      ::cuda::std::execution::env{::cuda::stream_ref{stream}, wanted});
}

Work chain(Memory& m, size_t k, cudaStream_t stream) {
  size_t bytes = 0;
  check_cuda(max_pairs(m, nullptr, bytes, k, stream), "DeviceTopK's scratch");
  m.scratch = Buffer(bytes, kGpu);
  return [&m, k, stream](int set) {
    add_and_measure<<<blocks_for(m.numel), kThreads, 0, stream>>>(
        m.input(set, 0), m.input(set, 1), m.sum.as<float>().data(),
        m.magnitudes.as<uint32_t>().data(), m.numel);
    size_t scratch = m.scratch.size_bytes();
    check_cuda(max_pairs(m, m.scratch.data(), scratch, k, stream), "DeviceTopK");
    scatter<<<blocks_for(k), kThreads, 0, stream>>>(
        m.sum.as<float>().data(), m.indices.as<uint32_t>().data(), m.values.as<float>().data(), k);
    check_cuda(cudaGetLastError(), "scatter");
  };
}

struct Options {
  std::vector<size_t> numels;
  int repeats = 15;
  std::string json;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const unsigned long long value = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--numel" && value >= 4096 && value <= (1ull << 31)) {
      options.numels.push_back(value);
    } else if (name == "--repeats" && value >= 1) {
      options.repeats = static_cast<int>(value);
    } else if (name == "--json") {
      options.json = argv[i + 1];
    } else {
      throw std::invalid_argument(
          concat(name, " ", argv[i + 1], ": expected --numel 4096 to 2^31, --repeats, --json"));
    }
  }
  if (options.numels.empty()) {
    options.numels = {110'000'000, 25'600'000};
  }
  return options;
}

void write(const std::string& file, const std::string& rows) {
  if (file.empty()) {
    return;
  }
  NewFile whole(file);
  whole.write(concat("{\"rows\": [", rows, "]}\n"));
  whole.replace(file);
}

int run(const Options& options) {
  if (cuda::device_count() == 0) {
    std::cout << "cuda_topk_peer: no GPU: " << cuda::unavailable_reason() << "\n";
    return 0;
  }
  const auto stream = cuda::make_stream(0);
  const auto handle = static_cast<cudaStream_t>(stream->native_handle());
  Timer timer(*stream, options.repeats);
  std::string rows;
  for (const size_t numel : options.numels) {
    Memory memory(numel, handle);
    for (const auto& [name, one_in] :
         {std::pair("0.1%", 1000), std::pair("1%", 100), std::pair("10%", 10)}) {
      std::ostringstream row;
      row << (rows.empty() ? "" : ",\n") << "{\"op\": \"compress topk:" << name
          << "\", \"by\": \"CUB DeviceTopK + scatter\", \"numel\": " << numel;
      try {
        const double ms = timer.median_ms(
            chain(memory, numel / static_cast<size_t>(one_in), handle), Launch::kGraph);
        row << ", \"ms\": " << ms << "}";
        std::printf("topk:%-6s %12zu %9.3f ms\n", name, numel, ms);
      } catch (const std::exception& error) {  // a row; a broken device fails the next ones, too
        row << ", \"absent\": \"" << error.what() << "\"}";
        std::printf("topk:%-6s %12zu absent: %s\n", name, numel, error.what());
      }
      rows += row.str();
      write(options.json, rows);
    }
  }
  stream->wait();
  return 0;
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  try {
    return gradwire::bench::run(gradwire::bench::parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "cuda_topk_peer: " << error.what() << "\n";
    return 1;
  }
}
