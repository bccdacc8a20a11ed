#pragma once
// A process for each suite: an error that breaks the device stays with the suite that made it.

namespace gradwire::testing {

/// Behind InitGoogleTest(), as RUN_ALL_TESTS(). Where the filter leaves one suite, with
/// --gtest_output (one file for all) and to list tests it is that, in this process. @returns
/// main()'s result.
int run_suites_apart(const char* const* argv);

}  // namespace gradwire::testing
