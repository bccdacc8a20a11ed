// ThreadSanitizer's settings of a program that makes races on purpose: each is reported, also where
// the same code had one before, and none of them ends the process with an error.

#include "tests/simt/races/race_reports.h"

#include <atomic>

namespace {
std::atomic<int> reports = 0;
}  // namespace

extern "C" {
__attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "exitcode=0:symbolize=0:suppress_equal_stacks=0:suppress_equal_addresses=0";
}
__attribute__((visibility("default"))) void __tsan_on_report(const void*) { ++reports; }
}

namespace gradwire::testing {

int race_reports() { return reports; }

}  // namespace gradwire::testing
