// Opening NCCL: what is missing is named, what is there is used. With the real library, where it is
// found: what it does without a GPU.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "gradwire/comm/internal/nccl_communicator.h"
#include "gradwire/comm/transport/nccl.h"
#include "gradwire/comm/transport/nccl_library.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire::nccl_test {

/// Of nccl.h, against which the declarations were compared; 0 where it was not there.
int checked_header_version();
/// Why not.
const char* unchecked_reason();

namespace {

NcclResult version_22005(int* version) {
  *version = 22005;
  return NcclResult::kSuccess;
}
NcclResult version_21805(int* version) {
  *version = 21805;
  return NcclResult::kSuccess;
}
NcclResult nothing() { return NcclResult::kSuccess; }

/// All symbols but some.
auto library_without(std::vector<std::string> missing, NcclResult (*version)(int*)) {
  return [missing, version](const char* name) -> void* {
    if (std::string_view(name) == "ncclGetVersion") {
      return reinterpret_cast<void*>(version);
    }
    for (const std::string& absent : missing) {
      if (absent == name) {
        return nullptr;
      }
    }
    return reinterpret_cast<void*>(&nothing);
  };
}

template <class F>
void expect_refused(const std::string& text, const F& body) {
  try {
    body();
    ADD_FAILURE() << "expected: " << text;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(NcclLibrary, NamesRequiredSymbolsThatAreMissingAndTheVersion) {
  expect_refused(
      "nccl: /x/libnccl.so.2 (version 2.20.5) has no ncclReduce, ncclSend, expected NCCL 2.19.0 or "
      "newer",
      [] { probe_nccl(library_without({"ncclSend", "ncclReduce"}, version_22005), "/x/libnccl.so.2"); });
}

TEST(NcclLibrary, RefusesVersionsWhoseConfigurationIsNotKnown) {
  expect_refused("x has version 2.18.5, expected 2.19.0 or newer",
                 [] { probe_nccl(library_without({}, version_21805), "x"); });
}

TEST(NcclLibrary, ReportsOptionalSymbols) {
  const NcclLibrary library =
      probe_nccl(library_without({"ncclCommGrow", "ncclAlltoAll"}, version_22005), "x");
  EXPECT_EQ(library.version, 22005);
  EXPECT_EQ(library.has_not, (std::vector<std::string_view>{"ncclAlltoAll", "ncclCommGrow"}));
  EXPECT_EQ(library.functions.all_to_all, nullptr);
  EXPECT_NE(library.functions.comm_revoke, nullptr);
  EXPECT_EQ(library.describe(), "NCCL 2.20.5 (x), without ncclAlltoAll, ncclCommGrow");
}

TEST(NcclLibrary, StatesAConfigurationThatTheVersionKnows) {
  // Literal sizes: those of ncclConfig_t in NCCL's own headers.
  const std::map<int, std::pair<size_t, unsigned>> expected = {
      {21903, {48, 21903}}, {22503, {48, 22503}}, {22602, {48, 22602}},
      {22707, {72, 22700}}, {22809, {72, 22700}}, {23203, {72, 22700}}};
  for (const auto& [version, stated] : expected) {
    const NcclConfig config = make_nccl_config(version);
    EXPECT_EQ(config.size, stated.first) << version;
    EXPECT_EQ(config.version, stated.second) << version;
    EXPECT_EQ(config.magic, 0xcafebeefu);
    EXPECT_EQ(config.blocking, 0);
  }
}

TEST(NcclLibrary, SaysWhatItTriedToOpen) {
  expect_refused("cannot open /nowhere/libnccl.so.2", [] { open_nccl("/nowhere/libnccl.so.2"); });
  expect_refused("holds neither libnccl.so.2 nor lib/libnccl.so.2", [] { open_nccl("/tmp"); });
}

TEST(NcclLibrary, IsDeclaredAsItsHeaderDeclaresIt) {
  if (checked_header_version() == 0) {
    GTEST_SKIP() << unchecked_reason();
  }
  EXPECT_GE(checked_header_version(), 21900);
}

// ---- the real library, without a GPU

class RealNccl : public testing::Test {
 protected:
  void SetUp() override {
    try {
      library_ = &open_nccl(GRADWIRE_TEST_NCCL);
    } catch (const InvalidArgument& error) {
      GTEST_SKIP() << error.what();
    }
  }
  const NcclLibrary* library_ = nullptr;
};

TEST_F(RealNccl, HasWhatItsVersionPromises) {
  EXPECT_GE(library_->version, 21900);
  RecordProperty("nccl", library_->describe());
  for_each_nccl_function([&](std::string_view name, auto member, int since) {
    if (since <= library_->version) {
      EXPECT_NE(library_->functions.*member, nullptr) << name;
    }
  });
}

TEST_F(RealNccl, MakesIdsAndKnowsItsErrors) {
  NcclUniqueId first{}, second{};
  ASSERT_EQ(library_->functions.get_unique_id(&first), NcclResult::kSuccess);
  ASSERT_EQ(library_->functions.get_unique_id(&second), NcclResult::kSuccess);
  EXPECT_NE(std::string(first.internal, 128), std::string(second.internal, 128));
  EXPECT_STREQ(library_->functions.get_error_string(NcclResult::kSuccess), "no error");
  EXPECT_NE(std::string(library_->functions.get_error_string(NcclResult::kRemoteError)),
            library_->functions.get_error_string(NcclResult::kSystemError));
}

TEST_F(RealNccl, FailsToJoinWithoutAGpuAndSaysWhy) {
  if (cuda::device_count() > 0) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  NcclMembership membership{.rank = 0, .size = 1, .who = "rank 0"};
  membership.timeout = std::chrono::milliseconds(20000);
  ASSERT_EQ(library_->functions.get_unique_id(&membership.id), NcclResult::kSuccess);
  try {
    NcclCommunicator communicator(*library_, membership, make_nccl_config(library_->version),
                                  [] {});
    FAIL();
  } catch (const TransportError& error) {
    EXPECT_NE(std::string(error.what()).find("nccl: rank 0: joining 1 ranks: unhandled cuda error"),
              std::string::npos)
        << error.what();
  }
}

TEST(NcclRow, SaysWhyItCannotBeUsed) {
  for (const TransportRow& row : transport_registry()) {
    if (row.name == "nccl") {
      const std::string reason = row.unavailable_reason({});
      EXPECT_EQ(reason.empty(), cuda::device_count() > 0 && reason.empty()) << reason;
      return;
    }
  }
  FAIL() << "there is no row";
}

}  // namespace
}  // namespace gradwire::nccl_test
