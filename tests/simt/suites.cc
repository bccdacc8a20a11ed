#include "tests/simt/suites.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::testing {
namespace {

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) {
    return name.empty();
  }
  if (pattern[0] == '*') {
    return matches(pattern.substr(1), name) || (!name.empty() && matches(pattern, name.substr(1)));
  }
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         matches(pattern.substr(1), name.substr(1));
}

bool matches_any(const std::string& patterns, std::string_view name) {
  std::istringstream in(patterns);
  for (std::string pattern; std::getline(in, pattern, ':');) {
    if (matches(pattern, name)) {
      return true;
    }
  }
  return false;
}

/// GoogleTest's filters: what is wanted, and behind a minus what is not.
bool is_wanted(const std::string& filter, std::string_view name) {
  const size_t minus = filter.find('-');
  const std::string wanted = filter.substr(0, minus);
  return matches_any(wanted.empty() ? "*" : wanted, name) &&
         (minus == std::string::npos || !matches_any(filter.substr(minus + 1), name));
}

struct Suite {
  std::string name;
  std::string filter;  // the tests that are wanted
};

std::vector<Suite> wanted_suites() {
  std::vector<Suite> suites;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    std::string filter;
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(t)->name();
      if (is_wanted(::testing::GTEST_FLAG(filter), name)) {
        filter += (filter.empty() ? "" : ":") + name;
      }
    }
    if (!filter.empty()) {
      suites.push_back({suite.name(), filter});
    }
  }
  return suites;
}

/// @returns "" for success, else how it ended.
std::string run_alone(const char* const* argv, const Suite& suite) {
  std::vector<std::string> words;
  for (; *argv != nullptr; ++argv) {  // without GoogleTest's, which has taken them
    words.emplace_back(*argv);
  }
  words.push_back("--gtest_filter=" + suite.filter);
  words.push_back("--gtest_brief=" + std::to_string(::testing::GTEST_FLAG(brief) ? 1 : 0));
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  std::cout << std::flush;
  pid_t child = 0;
  if (const int error =
          posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ)) {
    return std::string("not started: ") + std::strerror(error);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      return std::string("lost: ") + std::strerror(errno);
    }
  }
  if (WIFSIGNALED(status)) {
    return "signal " + std::to_string(WTERMSIG(status));
  }
  return WEXITSTATUS(status) == 0 ? "" : "exit " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

int run_suites_apart(const char* const* argv) {
  const std::vector<Suite> suites = wanted_suites();
  if (suites.size() < 2 || ::testing::GTEST_FLAG(list_tests) ||
      !::testing::GTEST_FLAG(output).empty()) {
    return RUN_ALL_TESTS();
  }
  std::string failed;
  size_t failures = 0;
  for (const Suite& suite : suites) {
    if (const std::string ending = run_alone(argv, suite); !ending.empty()) {
      failed += (failed.empty() ? ": " : ", ") + suite.name + " (" + ending + ")";
      ++failures;
    }
  }
  std::cout << suites.size() << " suites, each in a process of its own, " << failures << " failed"
            << failed << "\n";
  return failures == 0 ? 0 : 1;
}

}  // namespace gradwire::testing
