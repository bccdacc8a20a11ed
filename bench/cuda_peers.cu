#include "bench/cuda_peers.h"

#include <cuda_fp16.h>
#include <thrust/copy.h>
#include <thrust/execution_policy.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <cub/cub.cuh>

#include "bench/cuda_timing.h"

namespace gradwire::bench {
namespace {

constexpr unsigned kThreads = 256;
constexpr size_t kBlock = 256;

unsigned blocks_for(size_t numel) {
  return static_cast<unsigned>((numel + kThreads - 1) / kThreads);
}

__device__ size_t element() { return size_t{blockIdx.x} * kThreads + threadIdx.x; }

__device__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

__global__ void accumulate(const float* g, const float* e, float* acc, uint32_t* keys, size_t n) {
  const size_t i = element();
  if (i < n) {
    acc[i] = g[i] + e[i];
    keys[i] = magnitude(acc[i]);
  }
}

struct Reaches {
  const float* acc;
  const uint32_t* threshold;
  __device__ bool operator()(uint32_t i) const { return magnitude(acc[i]) >= *threshold; }
};

__global__ void take_out(float* acc, const uint32_t* indices, float* values, size_t k) {
  const size_t i = element();
  if (i < k) {
    values[i] = acc[indices[i]];
    acc[indices[i]] = 0.0f;
  }
}

struct LargerMagnitude {
  __device__ float operator()(float a, float b) const { return fmaxf(fabsf(a), fabsf(b)); }
};

struct BlockBegin {
  __host__ __device__ size_t operator()(size_t block) const { return block * kBlock; }
};

__global__ void encode_int8(float* acc, const float* largest, int8_t* codes, size_t n) {
  const size_t i = element();
  if (i < n) {
    const float scale = largest[i / kBlock] / 127.0f;
    const float code = scale > 0.0f ? rintf(acc[i] / scale) : 0.0f;
    codes[i] = static_cast<int8_t>(code);
    acc[i] -= code * scale;
  }
}

__global__ void add_pairs(const uint32_t* indices, const float* values, float* sum, float scale,
                          size_t pairs) {
  const size_t i = element();
  if (i < pairs) {
    atomicAdd(sum + indices[i], scale * values[i]);
  }
}

struct ToHalf {
  __device__ __half operator()(float x) const { return __float2half_rn(x); }
};
struct Sum {
  __device__ float operator()(float g, float e) const { return g + e; }
};
struct Magnitude {
  __device__ uint32_t operator()(float x) const { return magnitude(x); }
};

void add_feedback(const PeerMemory& m, PeerScratch& s, cudaStream_t stream) {
  accumulate<<<blocks_for(m.g.size()), kThreads, 0, stream>>>(
      m.g.data(), m.e.data(), m.e_next.data(), s.keys.as<uint32_t>().data(), m.g.size());
}

}  // namespace

PeerScratch::PeerScratch(size_t numel)
    : keys(numel * 4, kGpu),
      sorted(numel * 4, kGpu),
      indices(numel * 4, kGpu),
      values(numel * 4, kGpu),
      count(64, kGpu),
      codes(numel, kGpu),
      scales((numel + kBlock - 1) / kBlock * 4, kGpu),
      temporary(numel * 4 + (size_t{64} << 20), kGpu) {}

void cub_top_k(const PeerMemory& m, size_t k, PeerScratch& s, cudaStream_t stream) {
  const size_t numel = m.g.size();
  add_feedback(m, s, stream);
  size_t bytes = s.temporary.size_bytes();
  check_cuda(cub::DeviceRadixSort::SortKeysDescending(
                 s.temporary.data(), bytes, s.keys.as<uint32_t>().data(),
                 s.sorted.as<uint32_t>().data(), numel, 0, 31, stream),
             "DeviceRadixSort");
  bytes = s.temporary.size_bytes();
  check_cuda(cub::DeviceSelect::If(
                 s.temporary.data(), bytes, thrust::counting_iterator<uint32_t>(0),
                 s.indices.as<uint32_t>().data(), s.count.as<int64_t>().data(),
                 static_cast<int64_t>(numel),
                 Reaches{m.e_next.data(), s.sorted.as<uint32_t>().data() + k - 1}, stream),
             "DeviceSelect");
  take_out<<<blocks_for(k), kThreads, 0, stream>>>(m.e_next.data(), s.indices.as<uint32_t>().data(),
                                                   s.values.as<float>().data(), k);
}

void cub_int8(const PeerMemory& m, PeerScratch& s, cudaStream_t stream) {
  const size_t numel = m.g.size() / kBlock * kBlock;
  add_feedback(m, s, stream);
  const auto begin =
      thrust::make_transform_iterator(thrust::counting_iterator<size_t>(0), BlockBegin{});
  size_t bytes = s.temporary.size_bytes();
  check_cuda(cub::DeviceSegmentedReduce::Reduce(s.temporary.data(), bytes, m.e_next.data(),
                                                s.scales.as<float>().data(),
                                                static_cast<int64_t>(numel / kBlock), begin,
                                                begin + 1, LargerMagnitude{}, 0.0f, stream),
             "DeviceSegmentedReduce");
  encode_int8<<<blocks_for(numel), kThreads, 0, stream>>>(
      m.e_next.data(), s.scales.as<float>().data(), s.codes.as<int8_t>().data(), numel);
}

void thrust_top_k(const PeerMemory& m, size_t k, PeerScratch& s, cudaStream_t stream) {
  const auto policy = thrust::cuda::par_nosync.on(stream);
  const size_t numel = m.g.size();
  float* const acc = m.e_next.data();
  uint32_t* const keys = s.keys.as<uint32_t>().data();
  thrust::transform(policy, m.g.data(), m.g.data() + numel, m.e.data(), acc, Sum{});
  thrust::transform(policy, acc, acc + numel, keys, Magnitude{});
  thrust::sort(policy, keys, keys + numel, ::cuda::std::greater<uint32_t>());
  thrust::copy_if(policy, thrust::counting_iterator<uint32_t>(0),
                  thrust::counting_iterator<uint32_t>(static_cast<uint32_t>(numel)),
                  s.indices.as<uint32_t>().data(), Reaches{acc, keys + k - 1});
  take_out<<<blocks_for(k), kThreads, 0, stream>>>(acc, s.indices.as<uint32_t>().data(),
                                                   s.values.as<float>().data(), k);
}

void thrust_half(const PeerMemory& m, PeerScratch& s, cudaStream_t stream) {
  thrust::transform(thrust::cuda::par_nosync.on(stream), m.g.data(), m.g.data() + m.g.size(),
                    reinterpret_cast<__half*>(s.values.data()), ToHalf{});
}

void atomic_add(std::span<const uint32_t> indices, std::span<const float> values, size_t ranks,
                std::span<float> sum, cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(sum.data(), 0, sum.size_bytes(), stream), "cudaMemsetAsync");
  const size_t pairs = indices.size() / ranks;
  for (size_t rank = 0; rank < ranks; ++rank) {
    add_pairs<<<blocks_for(pairs), kThreads, 0, stream>>>(indices.data() + rank * pairs,
                                                          values.data() + rank * pairs, sum.data(),
                                                          1.0f / static_cast<float>(ranks), pairs);
  }
}

}  // namespace gradwire::bench
