#include "gradwire/comm/internal/plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;

// The address-space tricks of sanitizers do not survive a private scope.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOwnSymbols = 0;
#else
constexpr int kOwnSymbols = RTLD_DEEPBIND;
#endif

/// The folder of the library, module or program this code was linked into.
fs::path own_folder() {
  static const char anchor = 0;
  Dl_info info{};
  std::error_code error;
  fs::path object;
  if (dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr) {
    object = fs::canonical(info.dli_fname, error);
  }
  if (error || object.empty()) {  // a program found through PATH has no folder in its name
    object = fs::canonical("/proc/self/exe", error);
  }
  return object.parent_path();
}

}  // namespace

std::vector<std::string> plugin_candidates(std::string_view file,
                                           const std::string& explicit_path) {
  if (!explicit_path.empty()) {
    const fs::path path = explicit_path;
    const bool is_file = path.filename().string().find(".so") != std::string::npos;
    return {is_file ? explicit_path : (path / file).string()};
  }
  const fs::path folder = own_folder();
  std::vector<std::string> candidates;
  for (const char* place : {".", "lib", "../lib", ".."}) {
    candidates.push_back((folder / place / file).lexically_normal().string());
  }
  return candidates;
}

void* open_plugin(std::string_view target, const std::vector<std::string>& candidates,
                  PluginSymbols symbols) {
  const int flags = RTLD_NOW | RTLD_LOCAL | (symbols == PluginSymbols::kOwn ? kOwnSymbols : 0);
  std::string list;
  for (const std::string& path : candidates) {
    std::error_code error;
    if (fs::exists(path, error)) {
      void* const plugin = dlopen(path.c_str(), flags);
      // dlerror() is only asked after a failure, where it is never null.
      check(plugin != nullptr, "plug-in: cannot open ", path, ": ",
            plugin == nullptr ? dlerror() : "");
      return plugin;
    }
    list += (list.empty() ? "" : ", ") + path;
  }
  throw InvalidArgument(
      concat("plug-in: not found, looked for ", list, "; expected what the target ", target,
             " makes: where it lies elsewhere, as beside a program that links gradwire statically, "
             "give its path or folder as plugin_path (find_package's gradwire_PLUGIN_DIR)"));
}

void* plugin_symbol(void* plugin, const char* name) {
  void* const symbol = dlsym(plugin, name);
  check(symbol != nullptr, "plug-in: it has no symbol ", name);
  return symbol;
}

}  // namespace gradwire
