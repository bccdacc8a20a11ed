// The tree keeps its rules, and each rule is seen to catch what it forbids in a tree made for it.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/structure/rules.h"

namespace gradwire::structure {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = GRADWIRE_SOURCE_DIR;

std::string joined(const Violations& violations) {
  std::string text;
  for (const std::string& violation : violations) {
    text += "\n  " + violation;
  }
  return text;
}

TEST(SourceTree, IncludesPointDownwards) {
  const Violations found = upward_includes(kRoot);
  EXPECT_TRUE(found.empty()) << joined(found);
}

TEST(SourceTree, InterfaceHeadersIncludeNoVendorHeader) {
  const Violations found = vendor_includes_in_headers(kRoot);
  EXPECT_TRUE(found.empty()) << joined(found);
}

TEST(SourceTree, NoFileIsLongerThanFourHundredLines) {
  const Violations found = long_files(kRoot);
  EXPECT_TRUE(found.empty()) << joined(found);
}

TEST(SourceTree, EveryFolderExplainsItself) {
  const Violations found = missing_readmes(kRoot);
  EXPECT_TRUE(found.empty()) << joined(found);
}

class MadeUpTree : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) /
            ("gradwire_structure_" + std::to_string(::getpid()) + "_" + test->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(std::string_view name, std::string_view text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  fs::path root_;
};

TEST_F(MadeUpTree, EveryUpwardIncludeIsFound) {
  write("kernels/core/a.h", "#include \"gradwire/kernels/ops/x.h\"\n");
  write("kernels/ops/b.cc", "// b\n#include <gradwire/kernels/compress/x.h>\n");
  write("kernels/compress/c.cc", "#include \"gradwire/optimizers/x.h\"\n");
  write("optimizers/d.cc", "#  include \"gradwire/comm/x.h\"\n");
  write("comm/transport/e.cc", "#include \"gradwire/optimizers/x.h\"\n");
  write("planner/f.cc", "#include \"gradwire/bindings/x.h\"\n");
  write("tests/reference/g.h", "#include \"gradwire/kernels/core/dtype.h\"\n");
  write("comm/h.cc", "#include \"comm/plan.h\"\n");
  const Violations expected = {
      "comm/h.cc:1: includes \"comm/plan.h\", must read \"gradwire/<layer>/...\"",
      "comm/transport/e.cc:1: may not include gradwire/optimizers/x.h",
      "kernels/compress/c.cc:1: may not include gradwire/optimizers/x.h",
      "kernels/core/a.h:1: may not include gradwire/kernels/ops/x.h",
      "kernels/ops/b.cc:2: may not include gradwire/kernels/compress/x.h",
      "optimizers/d.cc:1: may not include gradwire/comm/x.h",
      "planner/f.cc:1: may not include gradwire/bindings/x.h",
      "tests/reference/g.h:1: may not include gradwire/kernels/core/dtype.h",
  };
  EXPECT_EQ(upward_includes(root_), expected);
}

TEST_F(MadeUpTree, DownwardIncludesPass) {
  write("kernels/compress/a.cc", "#include \"gradwire/kernels/ops/x.h\"\n#include <vector>\n");
  write("planner/b.cc", "#include \"gradwire/comm/plan.h\"\n");
  write("tests/comm/c.cc", "#include \"gradwire/planner/x.h\"\n#include \"tests/support/y.h\"\n");
  EXPECT_EQ(upward_includes(root_), Violations{});
}

TEST_F(MadeUpTree, EveryVendorIncludeInAHeaderIsFound) {
  write("kernels/core/a.h", "#include <cuda_runtime_api.h>\n");
  write("comm/b.h", "#include <vector>\n#include <nccl.h>\n");
  write("comm/c.h", "#include <mpi.h>\n");
  write("planner/d.h", "#include <pybind11/pybind11.h>\n");
  write("kernels/core/internal/fine.h", "#include <cuda_runtime_api.h>\n");
  write("kernels/core/fine.cc", "#include <cuda_runtime_api.h>\n");
  write("bindings/fine.h", "#include <pybind11/pybind11.h>\n");
  const Violations expected = {
      "comm/b.h:2: an interface header includes nccl.h",
      "comm/c.h:1: an interface header includes mpi.h",
      "kernels/core/a.h:1: an interface header includes cuda_runtime_api.h",
      "planner/d.h:1: an interface header includes pybind11/pybind11.h",
  };
  EXPECT_EQ(vendor_includes_in_headers(root_), expected);
}

TEST_F(MadeUpTree, ALongFileIsFound) {
  write("comm/three.cc", "1\n2\n3\n");
  write("comm/four.cc", "1\n2\n3\n4\n");
  write("comm/__pycache__/four.py", "1\n2\n3\n4\n");
  write("four.sh", "1\n2\n3\n4");
  write("four.md", "1\n2\n3\n4\n");
  const Violations expected = {"comm/four.cc has 4 lines, at most 3 are allowed",
                               "four.sh has 4 lines, at most 3 are allowed"};
  EXPECT_EQ(long_files(root_, 3), expected);
}

TEST_F(MadeUpTree, AMissingOrLongReadmeIsFound) {
  write("comm/README.md", "1\n2\n3\n");
  write("comm/transport/a.cc", "\n");
  write("kernels/README.md", "1\n");
  write("kernels/internal/a.h", "\n");
  const Violations expected = {"comm/README.md has 3 lines, at most 2 are allowed",
                               "comm/transport/ has no README.md"};
  EXPECT_EQ(missing_readmes(root_, 2), expected);
}

}  // namespace
}  // namespace gradwire::structure
