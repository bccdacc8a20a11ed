#pragma once
// What make_compressor() calls for shapes on a GPU. Where there is none, or this build has no CUDA,
// the first allocation throws DeviceError.

#include <memory>

#include "gradwire/kernels/compress/internal/chunked.h"

namespace gradwire {

/// The row's compressor on the GPU of the shape, which gets a state of its own if it has none.
std::unique_ptr<Compressor> make_cuda_compressor(const CompressorRow& row,
                                                 const CompressorSpec& spec, CompressorShape shape);

// By the format of the payloads.
std::unique_ptr<Compressor> make_cuda_dense(std::unique_ptr<ChunkedCompressor> on_cpu,
                                            CompressorShape shape);
std::unique_ptr<Compressor> make_cuda_low_rank(std::unique_ptr<ChunkedCompressor> on_cpu,
                                               CompressorShape shape);
std::unique_ptr<Compressor> make_cuda_drawn(std::unique_ptr<ChunkedCompressor> on_cpu,
                                            CompressorShape shape);
std::unique_ptr<Compressor> make_cuda_quantized(std::unique_ptr<ChunkedCompressor> on_cpu,
                                                CompressorShape shape);
std::unique_ptr<Compressor> make_cuda_sparse(std::unique_ptr<ChunkedCompressor> on_cpu,
                                             CompressorShape shape);

}  // namespace gradwire
