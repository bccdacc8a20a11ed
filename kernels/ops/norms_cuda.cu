#include "gradwire/kernels/ops/norms.cuh"

namespace gradwire::cuda {

void sums_of_squares(std::span<const float> x, size_t block, std::span<double> sums,
                     Stream& stream) {
  const char* const op = "cuda::sums_of_squares";
  check_cuda_stream(op, stream);
  check(block > 0 && block % kNormChunk == 0 && block <= kMostNormChunks * kNormChunk, op,
        ": block is ", block, ", must be a positive multiple of ", kNormChunk, " of at most ",
        kMostNormChunks * kNormChunk);
  const size_t blocks = (x.size() + block - 1) / block;
  check(sums.size() == blocks, op, ": sums has ", sums.size(), " elements, must have ", blocks);
  const LaunchShape shape{blocks, kNormThreads, stream};
  GRADWIRE_LAUNCH(sums_of_squares_kernel, shape, x.data(), x.size(), block, sums.data());
}

void add_in_order(std::span<const double> sums, double* total, Stream& stream) {
  check_cuda_stream("cuda::add_in_order", stream);
  check(total != nullptr, "cuda::add_in_order: total is null, must be a device double");
  GRADWIRE_LAUNCH(add_in_order_kernel, (LaunchShape{1, kWarp, stream}), sums.data(), sums.size(),
                  total);
}

void add_parts(std::span<const double> parts, std::span<double> sums, Stream& stream) {
  check_cuda_stream("cuda::add_parts", stream);
  const size_t numel = sums.size(), count = numel == 0 ? 0 : parts.size() / numel;
  check(parts.size() == count * numel, "cuda::add_parts: parts has ", parts.size(),
        " elements, must have a multiple of ", numel);
  const LaunchShape shape{(numel + kNormThreads - 1) / kNormThreads, kNormThreads, stream};
  GRADWIRE_LAUNCH(add_parts_kernel, shape, parts.data(), count, sums.data(), numel);
}

}  // namespace gradwire::cuda
