// The selection of the k largest against a pipeline of Thrust algorithms: sort by (magnitude down,
// index up), cut, count by chunk. Built where the headers of CCCL are found; they need no nvcc.

#include <gtest/gtest.h>

#ifdef GRADWIRE_HAS_THRUST
#include <thrust/binary_search.h>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/iterator/constant_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <bit>

#include "gradwire/kernels/ops/select_cuda.h"
#include "tests/simt/support.h"
#endif

namespace gradwire::testing {
namespace {

#ifdef GRADWIRE_HAS_THRUST

class SelectBesideThrust : public AnyOrder {};
INSTANTIATE_TEST_SUITE_P(Orders, SelectBesideThrust, kOrders);

struct Magnitude {
  uint32_t operator()(float x) const {
    return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
  }
};
struct ChunkOf {
  uint32_t operator()(uint32_t index) const { return index / 4096; }
};

struct Reference {
  Reference(const std::vector<float>& x, size_t k) : counts(cuda::select_chunks(x.size())) {
    const thrust::device_vector<float> values(x.begin(), x.end());
    thrust::device_vector<uint32_t> magnitudes(x.size());
    thrust::device_vector<uint32_t> order(x.size());
    thrust::transform(values.begin(), values.end(), magnitudes.begin(), Magnitude());
    thrust::sequence(order.begin(), order.end());
    thrust::stable_sort_by_key(magnitudes.begin(), magnitudes.end(), order.begin(),
                               thrust::greater<uint32_t>());
    const auto zeros = thrust::lower_bound(magnitudes.begin(), magnitudes.end(), 0u,
                                           thrust::greater<uint32_t>());
    const auto chosen = std::min<ptrdiff_t>(static_cast<ptrdiff_t>(k), zeros - magnitudes.begin());
    order.resize(static_cast<size_t>(chosen));
    thrust::sort(order.begin(), order.end());
    thrust::device_vector<uint32_t> chunks(counts.size());
    thrust::device_vector<uint32_t> in_chunk(counts.size());
    const auto chunk_of = thrust::make_transform_iterator(order.begin(), ChunkOf());
    const auto ends = thrust::reduce_by_key(chunk_of, chunk_of + chosen,
                                            thrust::make_constant_iterator(1u), chunks.begin(),
                                            in_chunk.begin());
    for (ptrdiff_t i = 0; i < ends.first - chunks.begin(); ++i) {
      counts[chunks[static_cast<size_t>(i)]] = in_chunk[static_cast<size_t>(i)];
    }
    indices.assign(order.begin(), order.end());
  }

  std::vector<uint32_t> indices;
  std::vector<uint32_t> counts;
};

TEST_P(SelectBesideThrust, ChooseTheSame) {
  for (const size_t numel : {size_t{257}, size_t{9001}, size_t{70001}}) {
    for (const Pattern& pattern : finite_patterns(numel, 61)) {
      for (const size_t k : {size_t{1}, numel / 100 + 1, numel / 3}) {
        SCOPED_TRACE(concat(pattern.name, ", ", k, " of ", numel));
        const DeviceArray<float> g = on_device(pattern.values);
        const size_t chunks = cuda::select_chunks(numel);
        DeviceArray<float> x(numel);
        DeviceArray<std::byte> mask(chunks * cuda::kMaskBytes);
        DeviceArray<uint32_t> counts(chunks);
        DeviceArray<cuda::EntriesBefore> before(chunks);
        DeviceArray<std::byte> workspace(cuda::select_workspace_bytes(numel));
        DeviceValue<cuda::CallWords> call;
        cuda::select_largest({{g.data(), numel, DType::kFloat32, kEmulated}, {}, k},
                             {std::span(x), mask, counts, before, call.data(), workspace}, stream_);
        stream_.wait();
        const Reference expected(pattern.values, k);
        std::vector<uint32_t> chosen;
        for (uint32_t i = 0; i < numel; ++i) {
          if ((static_cast<unsigned>(mask[i / 8]) >> (i % 8) & 1u) != 0) {
            chosen.push_back(i);
          }
        }
        ASSERT_EQ(chosen, expected.indices);
        ASSERT_TRUE(std::ranges::equal(counts, expected.counts));
      }
    }
  }
}

#else

TEST(SelectBesideThrust, ChooseTheSame) {
  GTEST_SKIP() << "needs Thrust's headers, include/cccl of a CUDA toolkit";
}

#endif

}  // namespace
}  // namespace gradwire::testing
