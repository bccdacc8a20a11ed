#include "gradwire/comm/transport/nccl_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;

constexpr int kOldest = 21900;
constexpr const char* kFile = "libnccl.so.2";

std::string join(const std::vector<std::string_view>& names) {
  std::string list;
  for (const std::string_view name : names) {
    list += concat(list.empty() ? "" : ", ", name);
  }
  return list;
}

/// What dlopen is asked for.
std::string file_of(const std::string& path) {
  std::error_code error;
  if (path.empty()) {
    return kFile;
  }
  if (!fs::is_directory(path, error)) {
    return path;
  }
  for (const char* const below : {"", "lib"}) {
    const fs::path file = fs::path(path) / below / kFile;
    if (fs::exists(file, error)) {
      return file.string();
    }
  }
  throw InvalidArgument(concat("nccl: ", path, " holds neither ", kFile, " nor lib/", kFile));
}

}  // namespace

NcclConfig make_nccl_config(int library_version) {
  NcclConfig config;
  config.blocking = 0;
  // Stating an older layout than the library's makes it fill the rest with its defaults.
  const bool has_all = library_version >= 22700;
  config.version = static_cast<unsigned>(has_all ? 22700 : library_version);
  config.size = has_all ? sizeof(NcclConfig) : offsetof(NcclConfig, comm_name);
  return config;
}

std::string nccl_version_text(int version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string NcclLibrary::describe() const {
  return concat("NCCL ", nccl_version_text(version), " (", path, ")",
                has_not.empty() ? "" : ", without ", join(has_not));
}

NcclLibrary probe_nccl(const std::function<void*(const char*)>& symbol, std::string path) {
  NcclLibrary library;
  library.path = std::move(path);
  std::vector<std::string_view> missing;
  for_each_nccl_function([&](std::string_view name, auto member, int since) {
    using Function = std::remove_reference_t<decltype(library.functions.*member)>;
    library.functions.*member = reinterpret_cast<Function>(symbol(name.data()));
    const bool found = library.functions.*member != nullptr;
    if (since == 0 && !found) {
      missing.push_back(name);
    } else if (since != 0) {
      (found ? library.has : library.has_not).push_back(name);
    }
  });
  if (library.functions.get_version != nullptr &&
      library.functions.get_version(&library.version) != NcclResult::kSuccess) {
    library.version = 0;
  }
  const std::string version =
      library.version == 0 ? "unknown" : nccl_version_text(library.version);
  check(missing.empty(), "nccl: ", library.path, " (version ", version, ") has no ",
        join(missing), ", expected NCCL ", nccl_version_text(kOldest), " or newer");
  check(library.version >= kOldest, "nccl: ", library.path, " has version ", version,
        ", expected ", nccl_version_text(kOldest), " or newer");
  return library;
}

const NcclLibrary& open_nccl(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<NcclLibrary>> opened;
  std::lock_guard lock(mutex);
  auto& library = opened[path];
  if (library == nullptr) {
    const std::string file = file_of(path);
    // Where torch has loaded its NCCL already, the loader gives that one for the bare name.
    void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    // dlerror() is only asked after a failure, where it is never null.
    check(handle != nullptr, "nccl: cannot open ", handle == nullptr ? dlerror() : "",
          "; pip install nvidia-nccl-cu13 brings it, and its folder nvidia/nccl can be given");
    library = std::make_unique<NcclLibrary>(
        probe_nccl([&](const char* name) { return dlsym(handle, name); }, file));
  }
  return *library;
}

}  // namespace gradwire
