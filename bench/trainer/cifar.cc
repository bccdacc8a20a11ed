#include "bench/trainer/cifar.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include "bench/trainer/idx.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

using gradwire::check;

// One of the two versions: files to train with, then one to test with; records of labels and
// pixels, of which the last label counts (of CIFAR-100 the fine one, behind the coarse one).
struct Version {
  std::string_view name;
  std::span<const std::string_view> files;
  size_t labels, classes;
  size_t record_bytes() const;
};
constexpr std::array<std::string_view, 6> kTen = {"data_batch_1.bin", "data_batch_2.bin",
                                                  "data_batch_3.bin", "data_batch_4.bin",
                                                  "data_batch_5.bin", "test_batch.bin"};
constexpr std::array<std::string_view, 2> kHundred = {"train.bin", "test.bin"};
constexpr std::array<Version, 2> kVersions = {
    {{"CIFAR-10", kTen, 1, 10}, {"CIFAR-100", kHundred, 2, 100}}};
constexpr size_t kChannels = 3, kSide = 32;

size_t Version::record_bytes() const { return labels + kChannels * kSide * kSide; }

std::string path_of(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

bool is_there(const std::string& folder, std::string_view name) {
  return std::filesystem::is_regular_file(path_of(folder, name));
}

void append(const std::string& path, const Version& version, LabelledImages& out) {
  const std::vector<uint8_t> bytes = read_file(path);
  const size_t record_bytes = version.record_bytes();
  check(!bytes.empty() && bytes.size() % record_bytes == 0, path, ": has ", bytes.size(),
        " bytes, expected a multiple of ", record_bytes);
  for (size_t begin = 0; begin < bytes.size(); begin += record_bytes) {
    const uint8_t label = bytes[begin + version.labels - 1];
    check(label < version.classes, path, ": the label of record ", begin / record_bytes, " is ",
          static_cast<int>(label), ", expected 0 to ", version.classes - 1);
    const auto record = bytes.begin() + static_cast<ptrdiff_t>(begin);
    out.labels.push_back(label);
    out.pixels.insert(out.pixels.end(), record + static_cast<ptrdiff_t>(version.labels),
                      record + static_cast<ptrdiff_t>(record_bytes));
  }
  out.count = out.labels.size();
}

// The version of which any file is there.
const Version* version_of(const std::string& folder) {
  for (const Version& version : kVersions) {
    if (std::ranges::any_of(version.files,
                            [&](std::string_view name) { return is_there(folder, name); })) {
      return &version;
    }
  }
  return nullptr;
}

}  // namespace

bool is_cifar_folder(const std::string& folder) { return version_of(folder) != nullptr; }

DataFolder load_cifar_folder(const std::string& folder) {
  const Version* found = version_of(folder);
  const Version& version = found != nullptr ? *found : kVersions[0];
  std::string missing;
  for (const std::string_view name : version.files) {
    if (!is_there(folder, name)) {
      missing += gradwire::concat(missing.empty() ? "" : ", ", name);
    }
  }
  check(missing.empty(), "data: folder '", folder, "' lacks ", missing, ", expected all ",
        version.files.size() == 6 ? "six" : "two", " files of ", version.name, "'s binary version");
  const LabelledImages none{.channels = kChannels, .rows = kSide, .columns = kSide};
  DataFolder out{.train = none, .test = none, .classes = version.classes};
  for (const std::string_view name : version.files) {
    append(path_of(folder, name), version, name == version.files.back() ? out.test : out.train);
  }
  return out;
}

}  // namespace trainer
