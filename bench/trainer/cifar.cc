#include "bench/trainer/cifar.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "bench/trainer/idx.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

using gradwire::check;

constexpr std::array<std::string_view, 6> kNames = {"data_batch_1.bin", "data_batch_2.bin",
                                                    "data_batch_3.bin", "data_batch_4.bin",
                                                    "data_batch_5.bin", "test_batch.bin"};
constexpr size_t kChannels = 3, kSide = 32, kClasses = 10;
constexpr size_t kRecordBytes = 1 + kChannels * kSide * kSide;

std::string path_of(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

bool is_there(const std::string& folder, std::string_view name) {
  return std::filesystem::is_regular_file(path_of(folder, name));
}

void append(const std::string& path, LabelledImages& out) {
  const std::vector<uint8_t> bytes = read_file(path);
  check(!bytes.empty() && bytes.size() % kRecordBytes == 0, path, ": has ", bytes.size(),
        " bytes, expected a multiple of ", kRecordBytes);
  for (size_t begin = 0; begin < bytes.size(); begin += kRecordBytes) {
    const uint8_t label = bytes[begin];
    check(label < kClasses, path, ": the label of record ", begin / kRecordBytes, " is ",
          static_cast<int>(label), ", expected 0 to ", kClasses - 1);
    const auto record = bytes.begin() + static_cast<ptrdiff_t>(begin);
    out.labels.push_back(label);
    out.pixels.insert(out.pixels.end(), record + 1, record + kRecordBytes);
  }
  out.count = out.labels.size();
}

}  // namespace

bool is_cifar_folder(const std::string& folder) {
  return std::ranges::any_of(kNames, [&](std::string_view name) { return is_there(folder, name); });
}

DataFolder load_cifar_folder(const std::string& folder) {
  std::string missing;
  for (const std::string_view name : kNames) {
    if (!is_there(folder, name)) {
      missing += gradwire::concat(missing.empty() ? "" : ", ", name);
    }
  }
  check(missing.empty(), "data: folder '", folder, "' lacks ", missing,
        ", expected all six files of CIFAR-10's binary version");
  const LabelledImages none{.channels = kChannels, .rows = kSide, .columns = kSide};
  DataFolder out{.train = none, .test = none, .classes = kClasses};
  for (const std::string_view name : kNames) {
    append(path_of(folder, name), name == kNames.back() ? out.test : out.train);
  }
  return out;
}

}  // namespace trainer
