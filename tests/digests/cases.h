#pragma once
// What the digests are taken of: specs, sizes, gradients. Nothing here may change but by rows that are
// added, else digests that were recorded before lose their sense.

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"

namespace gradwire::digests {

inline constexpr size_t kSizes[] = {0, 1, 63, 4095, 4096, 4097, 12289};
inline constexpr size_t kLongSize = 4097;
inline constexpr int kSteps = 8, kLongSteps = 200;
inline constexpr uint64_t kSeed = 20261127;
inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

/// Rows of the matrix that most of a group of `numel` elements is; the rest is a vector.
inline size_t matrix_rows(size_t numel) {
  switch (numel) {
    case 63:
      return 7;
    case 4095:
      return 63;
    case 4096:
      return 64;
    case 4097:
      return 17;
    case 12289:
      return 96;
    default:
      return 0;
  }
}

/// Element i of the gradient of a rank in a step: made of integers and products alone, so that every
/// compiler gives the same bits. Large ones are rare, some are zero, every third step is smaller.
inline float element(size_t i, int rank, int step) {
  uint64_t x = kSeed + i * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(rank) * 0xD1B54A32D192ED03u +
               static_cast<uint64_t>(step) * 0x8CB92BA72F3D8DD7u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  x ^= x >> 31;
  const float u = static_cast<float>(static_cast<int32_t>(x >> 32) >> 8) * 0x1p-23f;
  const float cube = u * u * u;
  const float scale = step % 3 == 2 ? 0.125f : 1.0f;
  return i % 61 == 7 ? 0.0f : cube * scale;
}

inline std::vector<float> gradient(size_t numel, int rank, int step, size_t begin = 0) {
  std::vector<float> values(numel);
  for (size_t i = 0; i < numel; ++i) {
    values[i] = element(begin + i, rank, step);
  }
  return values;
}

/// Specs of every selection, codec, rounding and rule of feedback, beside the examples of the registry.
inline std::vector<std::string> specs() {
  std::vector<std::string> all = {
      "none", "fp16", "bf16", "fp16,ef", "bf16,ef", "none,ef"};
  for (const char* codec : {"int8", "int4", "2bit", "e4m3", "e5m2"}) {
    for (const char* rest : {"", ",noef", ",stochastic", ",stochastic,block=8", ",block=4096"}) {
      all.push_back(std::string(codec) + rest);
    }
  }
  for (const char* codec : {"1bit", "ternary", "natural"}) {
    for (const char* rest : {"", ",ef", ",noef", ",block=8,ef", ",block=4096,ef"}) {
      all.push_back(std::string(codec) + rest);
    }
  }
  for (const char* levels : {":1,block=8", ":5", ":7,ef", ":100,block=4096,ef"}) {
    all.push_back(std::string("qsgd") + levels);
  }
  for (const char* selection : {"topk:1%", "topk:30%", "chunktopk:64/4096", "chunktopk:30%",
                                "threshold:1%", "threshold:30%"}) {
    for (const char* codec : {"", ",fp16", ",bf16", ",int8", ",int4", ",2bit", ",1bit", ",e4m3",
                              ",e5m2", ",natural", ",ternary", ",qsgd:5", ",int8,stochastic"}) {
      all.push_back(std::string(selection) + codec);
    }
  }
  for (const char* selection : {"tensortopk:1%", "randomk:1%", "randomk:30%", "blocktopk:1%",
                                "blocktopk:5%,width=16", "dgc:1%", "dgc:5%,clip=1,warmup=2"}) {
    for (const char* codec : {"", ",bf16", ",int8", ",int4", ",2bit"}) {
      all.push_back(std::string(selection) + codec);
    }
  }
  for (const char* low_rank : {"powersgd:1", "powersgd:2", "powersgd:4,rounds=2"}) {
    all.push_back(low_rank);
  }
  for (const char* base : {"int8", "int4,stochastic", "1bit", "fp16,ef", "none,ef", "topk:1%",
                           "topk:5%,int4", "chunktopk:64/4096", "threshold:5%", "randomk:10%",
                           "randomk:10%,int8", "tensortopk:5%", "blocktopk:5%", "powersgd:2",
                           "powersgd:2,rounds=2", "dgc:5%", "natural,ef", "qsgd:7,ef"}) {
    const std::string name(base);
    all.push_back(name + ",decay=0.9");
    if (!name.starts_with("dgc")) {
      all.push_back(name + ",momentum=0.8");
      const std::string bare = name.ends_with(",ef") ? name.substr(0, name.size() - 3) : name;
      all.push_back(bare + ",ef21");
      all.push_back(bare + ",ef21,eta=0.3");
    }
  }
  for (const char* without : {"topk:1%,noef", "topk:30%,int8,noef", "chunktopk:64/4096,noef",
                              "threshold:5%,noef", "randomk:10%,noef", "powersgd:2,noef"}) {
    all.push_back(without);
  }
  return all;
}

/// Beside specs(): what only a Reducer does, stages and residuals of 16 bits.
inline std::vector<std::string> reducer_specs() {
  std::vector<std::string> all = specs();
  for (const char* more :
       {"topk:1%,start=3", "topk:1%,int4,start=2:bf16", "topk:5%,warmup=2", "int8,start=3",
        "threshold:5%,start=2,warmup=1", "powersgd:2,start=2", "dgc:5%,start=2,warmup=1",
        "int8,residual=bf16", "int4,residual=bf16", "topk:1%,residual=bf16",
        "topk:5%,int4,residual=bf16,decay=0.9", "topk:5%,momentum=0.8,residual=bf16",
        "powersgd:2,rounds=2,residual=bf16",
        "chunktopk:64/4096,int4,residual=bf16", "int8,ef21,start=2:bf16",
        "topk:5%,ef21,eta=0.3,start=1", "int8,momentum=0.8,start=1:bf16"}) {
    all.push_back(more);
  }
  return all;
}

}  // namespace gradwire::digests
