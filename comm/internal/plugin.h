#pragma once
// Finding and opening plug-ins.

#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

/// Where a plug-in may lie: `explicit_path` alone when given (the file, or the folder it lies in),
/// else beside the object that holds this code, and in lib/, ../lib/ and ../ of it (libraries, a
/// Python package and its programs).
std::vector<std::string> plugin_candidates(std::string_view file, const std::string& explicit_path);

/// Whose copy of a library a plug-in uses where the process has another one already.
enum class PluginSymbols {
  kOwn,    ///< its own: Gloo's, since libtorch has one inside that differs
  kShared  ///< the process's: MPI's, whose objects an application shares with it
};

/// Opens the first candidate that exists. Stays open until the process ends. `target` makes it.
/// @throws InvalidArgument listing the candidates, or why the loader refused.
void* open_plugin(std::string_view target, const std::vector<std::string>& candidates,
                  PluginSymbols symbols);

/// @throws InvalidArgument when the object has no such symbol.
void* plugin_symbol(void* plugin, const char* name);

}  // namespace gradwire
