#pragma once
// Runs the ranks this process is responsible for, and reports what goes wrong.

#include "bench/trainer/options.h"

namespace trainer {

inline constexpr int kExitOk = 0;
inline constexpr int kExitRunError = 1;
inline constexpr int kExitBadArguments = 2;

/// Returns the exit code: 0, 1 when a rank failed, 130 after SIGINT, 143 after SIGTERM.
int run_job(const Options& options);

}  // namespace trainer
