#pragma once
// The rules of the source tree. Each takes its root and returns one line per violation.

#include <filesystem>
#include <string>
#include <vector>

namespace gradwire::structure {

using Violations = std::vector<std::string>;

/// Includes of the layers point downwards and read gradwire/<layer>/..., so that they work the same
/// in the tree and when installed; tests/reference includes nothing of the library.
Violations upward_includes(const std::filesystem::path& root);

/// Headers that users include bring in no CUDA, NCCL, MPI, Gloo or pybind11.
Violations vendor_includes_in_headers(const std::filesystem::path& root);

/// No source file is longer than `most` lines.
Violations long_files(const std::filesystem::path& root, size_t most = 400);

/// Code folders, and the folders in them, have a README.md of at most `most` lines. Folders named
/// "internal" are parts of the one above.
Violations missing_readmes(const std::filesystem::path& root, size_t most = 60);

}  // namespace gradwire::structure
