#pragma once
// What the laws run over: every row of the registry with every value codec and rounding it takes.

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "tests/support/generators.h"
#if defined(GRADWIRE_LAWS_ON_DEVICE)
#include "tests/simt/device_rig.h"
#else
#include "tests/kernels/cpu_rig.h"
#endif

namespace gradwire::testing {

#if !defined(GRADWIRE_LAWS_ON_DEVICE)
using Rig = CpuRig;
#endif

/// The row's example, with error feedback.
inline std::string with_feedback(const CompressorRow& row) {
  return std::string(row.example) + (row.feedback.on ? "" : ",ef");
}

/// The rows that there are on the device of the tests.
inline std::vector<CompressorRow> all_rows() {
  const std::span<const CompressorRow> registry = compressor_registry();
  std::vector<CompressorRow> rows(registry.begin(), registry.end());
#if defined(GRADWIRE_LAWS_ON_DEVICE)
  std::erase_if(rows, [](const CompressorRow& row) { return row.on_gpu == nullptr; });
#endif
  return rows;
}

/// Spec strings of all_rows(); each keeps error feedback.
inline std::vector<std::string> all_specs() {
  std::vector<std::string> specs;
  for (const CompressorRow& row : all_rows()) {
    const std::string name(row.name);
    if (row.shared_choice()) {  // beside compress_randomk_test.cc, which takes every codec
      specs.insert(specs.end(), {name + ":1%,fp32", name + ":30%,int4"});
    } else if (row.takes_width()) {
      for (const char* rest : {":1%,fp32", ":30%,int8", ":5%,width=16,2bit", ":10%,width=1000,bf16"}) {
        specs.push_back(name + rest);
      }
    } else if (row.keeps_velocity() || name == "tensortopk") {  // their payloads are those of topk
      specs.insert(specs.end(), {name + ":1%,fp32", name + ":30%,int8"});
    } else if (row.selector()) {
      for (const char* density : {":1%", ":30%"}) {
        for (const char* values : {"fp32", "fp16", "bf16", "int8", "int4"}) {
          specs.push_back(name + density + "," + values);
        }
      }
      specs.push_back(name + ":1%,e4m3");
      specs.push_back(name + ":30%,e5m2");
      if (name == "chunktopk") {  // the others' runs of values are the same
        specs.push_back(name + ":1%,2bit");
        specs.push_back(name + ":1%,ternary");
      } else if (name == "topk") {
        specs.push_back(name + ":30%,1bit");
        specs.push_back(name + ":1%,qsgd:5");
#if !defined(GRADWIRE_LAWS_ON_DEVICE)  // tests/simt/sparse_test.cc has them all
        for (const char* rest : {":30%,2bit", ":1%,1bit", ":30%,qsgd:100", ":1%,natural",
                                 ":30%,int8,stochastic"}) {
          specs.push_back(name + rest);
        }
#endif
      }
    } else if (row.takes_rounding) {
      for (const char* options :
           {",nearest", ",stochastic", ",stochastic,block=8", ",block=4096"}) {
        specs.push_back(name + options);
      }
    } else if (row.takes_levels) {  // codes of 2, 4 and 8 bits
      for (const char* options : {":1,block=8,ef", ":5,ef", ":100,block=4096,ef"}) {
        specs.push_back(name + options);
      }
    } else if (row.low_rank()) {  // beside compress_low_rank_test.cc: here no group has a matrix
      specs.push_back(name + ":2");
      specs.push_back(name + ":2,rounds=2");
    } else if (row.takes_block()) {
      for (const char* options : {",ef", ",block=8,ef", ",block=4096,ef"}) {
        specs.push_back(name + options);
      }
    } else {
      specs.push_back(name + ",ef");
    }
    specs.push_back(with_feedback(row) + ",decay=0.9");
    if (!row.keeps_velocity()) {
      specs.push_back(std::string(row.example) + ",ef21");
      specs.push_back(std::string(row.example) + ",ef21,eta=0.3");
      specs.push_back(with_feedback(row) + ",momentum=0.8");
    }
  }
  return specs;
}

inline constexpr uint64_t kLawSeed = 20240607;

inline const std::vector<size_t>& odd_sizes() {
#if defined(GRADWIRE_LAWS_ON_DEVICE)  // an emulator takes its time
  static const std::vector<size_t> sizes = {0, 1, 257, 4095, 4097, 6 * kChunk + 77};
#else
  static const std::vector<size_t> sizes = {
      0, 1, 2, 255, 256, 257, 4095, 4096, 4097, 2 * kChunk, 3 * kChunk + 1, 6 * kChunk + 77};
#endif
  return sizes;
}

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

/// Regions that tile [0, numel), `chunks` chunks each.
inline std::vector<Region> tiles(size_t numel, size_t chunks) {
  std::vector<Region> regions;
  for (size_t begin = 0; begin < numel; begin += chunks * kChunk) {
    regions.push_back({begin, std::min(numel, begin + chunks * kChunk)});
  }
  return regions;
}

/// One compressed gradient with everything a law may look at.
struct Sample {
  std::vector<float> g, e, e_next;
  std::vector<std::byte> payload;
  std::vector<float> decoded;  // in float32
};

inline Sample make_sample(const std::string& spec, DType dtype, std::vector<float> values, int threads = 1,
                   int rank = 0) {
  Rig rig(spec, {.numel = values.size(), .dtype = dtype, .seed = kLawSeed, .rank = rank}, threads);
  OwnedTensor gradient = tensor_of(values, dtype);
  Sample s;
  s.g = gradient.floats();
  s.e = normal(values.size(), kLawSeed + 1, 0.1f);
  s.e_next.assign(values.size(), -1.0f);
  s.payload = rig.compress(gradient, s.e, s.e_next);
  // A payload decodes to float32 in a compressor of that shape; "none" sends the gradient's type.
  Rig reader(spec,
             {.numel = values.size(), .dtype = spec.starts_with("none") ? dtype : DType::kFloat32});
  s.decoded = reader.decompress({s.payload}).floats();
  return s;
}

inline uint8_t flags_of(const std::vector<std::byte>& payload) {
  return read_header(payload).flags;
}

/// float(g + decay e), element by element.
inline std::vector<float> sum_of(const std::vector<float>& g, const std::vector<float>& e,
                                 float decay = 1.0f) {
  std::vector<float> x(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    const float kept = decay * e[i];
    x[i] = g[i] + kept;
  }
  return x;
}

/// Whether g + e == D + e_next bit for bit; else to one rounding of float32.
inline bool is_exact(const std::string& spec) {
  return parse_spec(spec).codec.rounding == Rounding::kNearest &&
         parse_spec(spec).codec.values != ValueCodec::kSign;
}

inline bool is_stochastic(const std::string& spec) {
  return parse_spec(spec).codec.rounding == Rounding::kStochastic;
}

/// Whether the next step depends on what this one compressed, beyond the residual.
inline bool keeps_velocity(const std::string& spec) {
  return gradwire::keeps_velocity(parse_spec(spec));
}

/// Specs of which gradients can be accumulated into the residual.
inline std::vector<std::string> accumulating_specs() {
  std::vector<std::string> specs = all_specs();
  std::erase_if(specs, [](const std::string& spec) {
    return keeps_velocity(spec) || parse_spec(spec).feedback.decay != 1 ||
           parse_spec(spec).feedback.ef21 || parse_spec(spec).choice.rounds != 1;
  });
  return specs;
}

/// Whether a step sends something else than the one before it, of the same gradient.
inline bool alternates(const std::string& spec) {
  return find_compressor(parse_spec(spec).name).low_rank() && parse_spec(spec).choice.rounds == 1;
}

/// Whether which elements are sent is drawn, by all ranks alike.
inline bool draws_elements(const std::string& spec) {
  return find_compressor(parse_spec(spec).name).shared_choice();
}

}  // namespace gradwire::testing
