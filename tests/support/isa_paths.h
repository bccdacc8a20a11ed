#pragma once
// The instruction sets that this machine can run, for tests that want the same bits from all.

#include <vector>

#include "gradwire/kernels/core/isa.h"

namespace gradwire::testing {

inline std::vector<cpu::Isa> isa_paths() {
  std::vector<cpu::Isa> paths;
  for (const cpu::Isa path : {cpu::Isa::kPlain, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (path <= cpu::best_isa()) {
      paths.push_back(path);
    }
  }
  return paths;
}

inline const char* name_of(cpu::Isa path) {
  return path == cpu::Isa::kPlain ? "plain" : path == cpu::Isa::kAvx2 ? "AVX2" : "AVX-512";
}

}  // namespace gradwire::testing
