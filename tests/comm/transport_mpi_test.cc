// Ranks as processes of mpirun, over the mpi transport: each test starts tests/comm/mpi_rank.cc.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "tests/comm/reducer_digest.h"
#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {
namespace {

class MpiProcesses : public testing::Test {
 protected:
  void SetUp() override {
    for (const TransportRow& row : transport_registry()) {
      if (row.name == "mpi") {
        if (const std::string why = row.unavailable_reason({}); !why.empty()) {
          GTEST_SKIP() << why;
        }
      }
    }
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) {
      GTEST_SKIP() << "there is no mpirun here";
    }
  }

  enum class Exit { kClean, kAny };

  /// What each rank says, "" for one that said nothing. Ranks talk over the loopback's TCP.
  static std::vector<std::string> run(int ranks, const std::string& what,
                                      Exit exit = Exit::kClean) {
    // mpirun warns on its own about ranks that die; a rank that hangs ends with the time limit.
    const std::string command = concat(
        "mpirun --allow-run-as-root --oversubscribe --bind-to none --timeout 60 --mca btl self,tcp "
        "--mca btl_tcp_if_include lo --mca oob_tcp_if_include lo -np ",
        ranks, " '", GRADWIRE_MPI_RANK, "' ", what, " 2>&1");
    std::vector<std::string> said(static_cast<size_t>(ranks));
    std::FILE* const output = popen(command.c_str(), "r");
    if (output == nullptr) {
      throw std::runtime_error("popen failed");
    }
    std::string all;
    char line[4096];
    while (std::fgets(line, sizeof(line), output) != nullptr) {
      all += line;
      int rank = -1, length = 0;
      if (std::sscanf(line, "rank %d: %n", &rank, &length) == 1 && length > 0 && rank >= 0 &&
          rank < ranks) {
        const std::string text = line + length;
        said[static_cast<size_t>(rank)] = text.substr(0, text.find('\n'));
      }
    }
    const int status = pclose(output);
    EXPECT_TRUE(status == 0 || exit == Exit::kAny) << command << "\n" << all;
    return said;
  }

  static void expect_contains(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nexpected: " << part;
  }
};

TEST_F(MpiProcesses, EveryVerbDeliversOnGroupsOfAllSizes) {
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    const std::vector<std::string> expected(static_cast<size_t>(ranks), "verified");
    EXPECT_EQ(run(ranks, "verify"), expected);
  }
}

TEST_F(MpiProcesses, SeveralGroupsLiveAtOnceAndOneAfterTheOther) {
  EXPECT_EQ(run(3, "rejoin"), std::vector<std::string>(3, "verified"));
}

TEST_F(MpiProcesses, AReducersMeansHaveTheSameBitsAsAmongThreads) {
  for (const std::string spec : {"none", "topk:5%", "int8"}) {
    const auto threads = make_in_process_group(4);
    std::vector<std::string> digests(4);
    expect_all_fine(run_threads(4, [&](int r) {
      const auto place = static_cast<size_t>(r);
      digests[place] = test::digest_of_steps(spec, *threads[place]);
    }));
    EXPECT_EQ(run(4, "reduce " + spec), digests) << spec;
    EXPECT_EQ(digests, std::vector<std::string>(4, digests[0]));
  }
}

TEST_F(MpiProcesses, RanksThatDisagreeAreToldOnEveryRank) {
  for (const std::string& error : run(3, "mismatch")) {
    expect_contains(error, "of a gradient: rank ");
    expect_contains(error, "ranks disagree on ");
  }
}

TEST_F(MpiProcesses, AnAbortReachesRanksThatWaitForHours) {
  const auto errors = run(4, "abort");
  EXPECT_EQ(errors[2], "the user pressed stop");
  for (const size_t other : {0u, 1u, 3u}) {
    expect_contains(errors[other],
                    "all_reduce_sum of a gradient: rank 2 closed the group: the user pressed stop");
  }
}

TEST_F(MpiProcesses, ARankThatLeavesIsNamed) {
  const auto errors = run(3, "leave");
  EXPECT_EQ(errors[1], "left");
  // One of them meets it in the second call. The other may still be on its way out of the first.
  expect_contains(errors[0] + errors[2], "barrier of the second call: rank 1 ");
  expect_contains(errors[0] + errors[2], "it left the group");
  for (const size_t other : {0u, 2u}) {
    expect_contains(errors[other], "barrier of the ");
    expect_contains(errors[other], ": rank ");
  }
}

TEST_F(MpiProcesses, ASilentRankIsNamedAtTheDeadline) {
  const auto errors = run(3, "silent");
  expect_contains(errors[0] + errors[2],
                  "barrier of the second call: rank 1 stayed silent past the deadline");
  for (const std::string& error : errors) {
    expect_contains(error, "barrier of the second call: rank ");
  }
}

TEST_F(MpiProcesses, ARankThatDoesNotJoinIsNamed) {
  const auto errors = run(3, "missing");
  EXPECT_EQ(errors[1], "no error");
  for (const size_t other : {0u, 2u}) {
    expect_contains(errors[other], concat("mpi: rank ", other, " joining the others: "));
  }
  expect_contains(errors[0] + errors[2], "no sign of rank 1 within 0.5 s (the timeout: ");
}

TEST_F(MpiProcesses, ARankThatNeverStartsMpiDoesNotHoldTheOthers) {
  // When the first of them leaves, mpirun ends the job.
  const auto errors = run(3, "late", Exit::kAny);
  expect_contains(errors[0] + errors[2],
                  "not all ranks called MPI_Init or joined within 0.7 s (the timeout: ");
}

TEST_F(MpiProcesses, AWorldThatIsNotMpisIsRefused) {
  const auto errors = run(2, "stranger");
  EXPECT_EQ(errors[1],
            "mpi: rank 1 of 3 was asked for, MPI says rank 1 of 2: are all processes started by "
            "one mpirun?");
}

TEST_F(MpiProcesses, AnApplicationMayUseMpiBesideIt) {
  for (const std::string& said : run(3, "application")) {
    expect_contains(said, "barrier of a call too late: rank ");
    expect_contains(said, "closed the group: the application called MPI_Finalize");
  }
}

TEST_F(MpiProcesses, AnApplicationThatInitialisedMpiWithoutThreadsIsRefused) {
  for (const std::string& said : run(2, "single")) {
    expect_contains(said, "mpi: the application initialised MPI without MPI_THREAD_MULTIPLE");
  }
}

}  // namespace
}  // namespace gradwire::transport_test
