#include "tests/structure/rules.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

namespace gradwire::structure {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string_view>;

const Names kCodeFolders = {"bench",   "bindings",   "cmake",   "comm", "examples",
                            "kernels", "optimizers", "planner", "tests"};
const Names kSourceSuffixes = {".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake"};
const Names kCppSuffixes = {".h", ".cc", ".cu", ".cuh"};

// What each part of the tree may include. The longest matching prefix decides.
const std::map<std::string, Names> kMayInclude = {
    {"kernels/core/", {"kernels/core/"}},
    {"kernels/ops/", {"kernels/core/", "kernels/ops/"}},
    {"kernels/compress/", {"kernels/"}},
    {"optimizers/", {"kernels/", "optimizers/"}},
    {"comm/", {"kernels/", "comm/"}},
    {"planner/", {"kernels/", "optimizers/", "comm/", "planner/"}},
    {"examples/", {"kernels/", "optimizers/", "comm/", "planner/"}},
    {"bench/", {"kernels/", "optimizers/", "comm/", "planner/", "bench/"}},
    {"bindings/", {"kernels/", "optimizers/", "comm/", "planner/", "bindings/"}},
    {"tests/reference/", {}},
};

const Names kInstalledLayers = {"kernels/", "optimizers/", "comm/", "planner/"};
const Names kVendorPrefixes = {"cuda", "cub/", "thrust/", "nccl", "mpi.h", "gloo/", "pybind11/"};

bool starts_with_any(std::string_view text, const Names& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

bool has_suffix(const fs::path& file, const Names& suffixes) {
  const std::string name = file.filename().string();
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// Left by tools, not written by anyone.
bool is_generated(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "__pycache__" || name.ends_with(".egg-info") || name.starts_with(".");
}

struct SourceFile {
  fs::path path;
  std::string name;  // relative to the root, with forward slashes
};

std::vector<SourceFile> files_with(const fs::path& root, const Names& suffixes) {
  std::vector<SourceFile> files;
  const auto add = [&](const fs::path& path) {
    if (has_suffix(path, suffixes)) {
      files.push_back({path, path.lexically_relative(root).generic_string()});
    }
  };
  for (const std::string_view folder : kCodeFolders) {
    if (!fs::exists(root / folder)) {
      continue;
    }
    for (auto it = fs::recursive_directory_iterator(root / folder); it != fs::end(it); ++it) {
      if (it->is_directory() && is_generated(it->path())) {
        it.disable_recursion_pending();
      } else if (it->is_regular_file()) {
        add(it->path());
      }
    }
  }
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_regular_file()) {
      add(entry.path());
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return files;
}

struct Include {
  std::string target;
  bool quoted = false;
  size_t line = 0;
};

std::vector<Include> includes_of(const fs::path& path) {
  std::vector<Include> includes;
  std::ifstream in(path);
  std::string text;
  for (size_t line = 1; std::getline(in, text); ++line) {
    const size_t hash = text.find_first_not_of(" \t");
    if (hash == std::string::npos || text[hash] != '#') {
      continue;
    }
    const size_t word = text.find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || text.compare(word, 7, "include") != 0) {
      continue;
    }
    const size_t open = text.find_first_of("\"<", word);
    const size_t close = open == std::string::npos ? open : text.find_first_of("\">", open + 1);
    if (close != std::string::npos) {
      includes.push_back({text.substr(open + 1, close - open - 1), text[open] == '"', line});
    }
  }
  return includes;
}

size_t count_lines(const fs::path& path) {
  std::ifstream in(path);
  size_t lines = 0;
  for (std::string text; std::getline(in, text);) {
    ++lines;
  }
  return lines;
}

const Names* allowed_for(const std::string& file) {
  const Names* allowed = nullptr;
  size_t longest = 0;
  for (const auto& [prefix, names] : kMayInclude) {
    if (file.starts_with(prefix) && prefix.size() > longest) {
      longest = prefix.size();
      allowed = &names;
    }
  }
  return allowed;
}

std::string place(const SourceFile& file, size_t line) {
  std::ostringstream out;
  out << file.name << ":" << line << ": ";
  return out.str();
}

}  // namespace

Violations upward_includes(const fs::path& root) {
  constexpr std::string_view kPrefix = "gradwire/";
  Violations violations;
  for (const SourceFile& file : files_with(root, kCppSuffixes)) {
    const Names* allowed = allowed_for(file.name);
    if (allowed == nullptr) {
      continue;  // tests may include anything
    }
    const bool installed = starts_with_any(file.name, kInstalledLayers);
    for (const Include& include : includes_of(file.path)) {
      if (include.target.starts_with(kPrefix)) {
        if (!starts_with_any(include.target.substr(kPrefix.size()), *allowed)) {
          violations.push_back(place(file, include.line) + "may not include " + include.target);
        }
      } else if (include.quoted && installed) {
        violations.push_back(place(file, include.line) + "includes \"" + include.target +
                             "\", must read \"gradwire/<layer>/...\"");
      }
    }
  }
  return violations;
}

Violations vendor_includes_in_headers(const fs::path& root) {
  Violations violations;
  for (const SourceFile& file : files_with(root, {".h"})) {
    if (!starts_with_any(file.name, kInstalledLayers) ||
        file.name.find("/internal/") != std::string::npos) {
      continue;
    }
    for (const Include& include : includes_of(file.path)) {
      if (starts_with_any(include.target, kVendorPrefixes)) {
        violations.push_back(place(file, include.line) + "an interface header includes " +
                             include.target);
      }
    }
  }
  return violations;
}

Violations long_files(const fs::path& root, size_t most) {
  Violations violations;
  Names suffixes = kSourceSuffixes;
  suffixes.push_back("CMakeLists.txt");
  for (const SourceFile& file : files_with(root, suffixes)) {
    const size_t lines = count_lines(file.path);
    if (lines > most) {
      std::ostringstream out;
      out << file.name << " has " << lines << " lines, at most " << most << " are allowed";
      violations.push_back(out.str());
    }
  }
  return violations;
}

Violations missing_readmes(const fs::path& root, size_t most) {
  Violations violations;
  const auto require = [&](const fs::path& folder) {
    const fs::path readme = folder / "README.md";
    const std::string name = folder.lexically_relative(root).generic_string();
    if (!fs::exists(readme)) {
      violations.push_back(name + "/ has no README.md");
    } else if (const size_t lines = count_lines(readme); lines > most) {
      std::ostringstream out;
      out << name << "/README.md has " << lines << " lines, at most " << most << " are allowed";
      violations.push_back(out.str());
    }
  };
  for (const std::string_view code_folder : kCodeFolders) {
    const fs::path folder = root / code_folder;
    if (!fs::exists(folder)) {
      continue;
    }
    require(folder);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const fs::path& path = entry.path();
      if (entry.is_directory() && !is_generated(path) && path.filename() != "internal" &&
          !fs::is_empty(path)) {
        require(path);
      }
    }
  }
  std::sort(violations.begin(), violations.end());
  return violations;
}

}  // namespace gradwire::structure
