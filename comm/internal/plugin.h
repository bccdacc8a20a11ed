#pragma once
// Finding and opening plug-ins.

#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

/// Where a plug-in may lie: `explicit_path` alone when given, else beside the object that holds
/// this code, and in lib/, ../lib/ and ../ of it (libraries, a Python package and its programs).
std::vector<std::string> plugin_candidates(std::string_view file, const std::string& explicit_path);

/// Opens the first candidate that exists, with names of its own: what it links to does not mix with
/// other copies in the process, such as the one inside libtorch. Stays open until the process ends.
/// @throws InvalidArgument listing the candidates, or why the loader refused.
void* open_plugin(const std::vector<std::string>& candidates);

/// @throws InvalidArgument when the object has no such symbol.
void* plugin_symbol(void* plugin, const char* name);

}  // namespace gradwire
