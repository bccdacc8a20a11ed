// After the first call compressors take no memory from the heap: this program counts.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "gradwire/kernels/core/clones.h"  // defines GRADWIRE_SANITIZED
#include "tests/kernels/compress_cases.h"

namespace {
std::atomic<size_t> allocations{0};
}  // namespace

#ifndef GRADWIRE_SANITIZED  // sanitizers bring their own and match new with delete
// Not inlined: GCC would see free() meet new and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace gradwire::testing {
namespace {

TEST(CompressorLaws, NothingIsAllocatedAfterTheFirstCall) {
#ifdef GRADWIRE_SANITIZED
  GTEST_SKIP() << "allocations are not counted in a sanitizer build";
#endif
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(spec);
    const size_t numel = 20 * kChunk + 5;
    const auto compressor = make_compressor(parse_spec(spec), {.numel = numel});
    const auto stream = make_inline_stream(2);
    Workspace workspace;
    Context context{*stream, workspace};
    OwnedTensor g = tensor_of(heavy_tailed(numel, 3), DType::kFloat32);
    OwnedTensor mean = zeros(numel, DType::kFloat32);
    const std::vector<float> e(numel);
    std::vector<float> e_next(numel);
    std::vector<std::byte> payload(compressor->capacity_bytes());
    std::vector<std::byte> out(payload.size());
    const ConstPayload parts[] = {payload, payload};
    size_t before = 0;
    for (int call = 0; call < 4; ++call) {
      if (call == 1) {
        before = allocations;
      }
      compressor->compress(g.view(), e, e_next, payload, context);
      compressor->decompress(parts, 0.5f, mean.view(), context);
      compressor->slice(payload, {kChunk, 2 * kChunk}, out, context);
      compressor->merge({parts, {0, numel}, 0.5f}, e_next, out, context);
      stream->wait();
      compressor->commit();
    }
    EXPECT_EQ(allocations - before, 0u);
  }
}

}  // namespace
}  // namespace gradwire::testing
