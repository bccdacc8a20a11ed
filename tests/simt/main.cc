// Runs the tests; with --every-kernel-of=FOLDER also fails when a __global__ function in the CUDA
// sources below the folder was never launched.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>

#include "tests/simt/emulator.h"

namespace {

namespace fs = std::filesystem;

std::set<std::string> kernels_below(const fs::path& folder) {
  static const std::regex kKernel(
      R"(__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\()");
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string suffix = entry.path().extension().string();
    if (suffix != ".cu" && suffix != ".cuh") {
      continue;
    }
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    for (std::sregex_iterator it(text.begin(), text.end(), kKernel), end; it != end; ++it) {
      names.insert((*it)[1]);
    }
  }
  return names;
}

int count_missing(const fs::path& folder) {
  const std::set<std::string> kernels = kernels_below(folder);
  const std::set<std::string> launched = gradwire::simt::launched_kernels();
  int missing = 0;
  for (const std::string& name : kernels) {
    if (!launched.contains(name)) {
      std::cerr << "kernel " << name << " was never launched\n";
      ++missing;
    }
  }
  std::cout << kernels.size() << " kernels in the sources, " << missing << " never launched\n";
  return kernels.empty() ? 1 : missing;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const std::string option = "--every-kernel-of=";
  int missing = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with(option)) {
      std::cerr << "unknown argument " << argument << ", known: " << option << "FOLDER\n";
      return 2;
    }
    missing += count_missing(argument.substr(option.size()));
  }
  return failed != 0 || missing != 0 ? 1 : 0;
}
