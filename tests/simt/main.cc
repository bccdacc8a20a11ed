// Runs the tests; with --every-kernel-of=FOLDER also fails when a __global__ function in the CUDA
// sources below the folder was never launched, here or in earlier runs that added the names of what
// they launched to a file: --launched-to=FILE there, --launched-also=FILE here.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <sstream>

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

int count_missing(const fs::path& folder, const std::set<std::string>& launched) {
  const std::set<std::string> kernels = kernels_below(folder);
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
  std::set<std::string> launched = gradwire::simt::launched_kernels();
  int missing = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = std::min(argument.find('='), argument.size() - 1);
    const std::string option = argument.substr(0, equals);
    const std::string value = argument.substr(equals + 1);
    if (option == "--launched-also") {  // before the folder it counts for
      std::ifstream in(value);
      if (!in) {
        std::cerr << "--launched-also=" << value << ": cannot be read\n";
        return 2;
      }
      launched.insert(std::istream_iterator<std::string>(in), {});
    } else if (option == "--launched-to") {
      // At once and at the end: tests that run at the same time write to the same file.
      std::ostringstream names;
      std::ranges::copy(launched, std::ostream_iterator<std::string>(names, "\n"));
      std::ofstream out(value, std::ios::app);
      if (!(out << names.str() << std::flush)) {
        std::cerr << "--launched-to=" << value << ": cannot be written\n";
        return 2;
      }
    } else if (option == "--every-kernel-of") {
      missing += count_missing(value, launched);
    } else {
      std::cerr << "unknown argument " << argument
                << ", known: --every-kernel-of=FOLDER --launched-to=FILE --launched-also=FILE\n";
      return 2;
    }
  }
  return failed != 0 || missing != 0 ? 1 : 0;
}
