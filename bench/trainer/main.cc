// gradwire-trainer: README.md says what it does and what it prints.

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "bench/trainer/job.h"
#include "bench/trainer/options.h"

int main(int argc, char** argv) {
  trainer::Options options;
  try {
    options = trainer::parse_options(std::span<const char* const>(argv + 1, argv + argc));
  } catch (const trainer::BadArguments& error) {
    std::fprintf(stderr, "gradwire-trainer: %s\n", error.what());
    return trainer::kExitBadArguments;
  }
  if (options.help) {
    std::fputs(trainer::help_text().c_str(), stdout);
    return trainer::kExitOk;
  }
  // Not an argument: those are everybody's to read.
  if (const char* const secret = std::getenv("GRADWIRE_JOB_SECRET"); secret != nullptr) {
    options.group.job_secret = secret;
  }
  options.group.log = [](std::string_view line) {
    std::fprintf(stderr, "gradwire-trainer: %.*s\n", static_cast<int>(line.size()), line.data());
  };
  return trainer::run_job(options);
}
