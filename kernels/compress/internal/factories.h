#pragma once
// What the rows of registry.cc call. The spec is validated and the shape checked.

#include "gradwire/kernels/compress/compressor.h"

namespace gradwire {

std::unique_ptr<Compressor> make_block_topk(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_dense(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_dgc(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_low_rank(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_quantized(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_randomk(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_signs(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_tensor_topk(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_threshold(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_topk(const CompressorSpec& spec, CompressorShape shape);
std::unique_ptr<Compressor> make_chunk_topk(const CompressorSpec& spec, CompressorShape shape);

}  // namespace gradwire
