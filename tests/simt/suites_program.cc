// Suites of which the first breaks its process, for simt.a_broken_suite_leaves_the_others_alone.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/simt/suites.h"

TEST(Breaks, ItsProcess) { std::abort(); }
TEST(Fails, Once) { FAIL(); }
TEST(Passes, Here) {}
TEST(Passes, NotWanted) { FAIL(); }

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return gradwire::testing::run_suites_apart(argv);
}
