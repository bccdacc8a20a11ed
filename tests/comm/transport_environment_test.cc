// Options from literal environments, as launchers make them.

#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "gradwire/comm/transport.h"

namespace gradwire::transport_test {
namespace {

/// Exactly these of our variables are set, until the end of the scope.
class Variables {
 public:
  Variables(std::initializer_list<std::pair<const char*, const char*>> variables) {
    clear();
    for (const auto& [name, value] : variables) {
      setenv(name, value, 1);
    }
  }
  ~Variables() { clear(); }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  static void clear() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_NODEID",
                             "SLURM_TASKS_PER_NODE",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_STEP_NODELIST",
                             "SLURM_JOB_NODELIST",
                             "SLURM_NODELIST",
                             "SLURM_LAUNCH_NODE_IPADDR",
                             "SLURM_JOB_ID",
                             "SLURM_JOBID",
                             "SLURM_STEP_ID",
                             "GRADWIRE_RANK",
                             "GRADWIRE_WORLD_SIZE",
                             "GRADWIRE_LOCAL_RANK",
                             "GRADWIRE_LOCAL_WORLD_SIZE",
                             "GRADWIRE_STORE",
                             "GRADWIRE_INTERFACE",
                             "GRADWIRE_JOB_SECRET",
                             "GLOO_SOCKET_IFNAME",
                             "NCCL_SOCKET_IFNAME"}) {
      unsetenv(name);
    }
  }
};

std::string error_with(std::initializer_list<std::pair<const char*, const char*>> variables) {
  const Variables set(variables);
  try {
    comm::from_environment();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Environment, TorchrunsVariablesAreRead) {
  const Variables set({{"RANK", "3"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "10.0.0.1"},
                       {"MASTER_PORT", "29500"}});
  const TransportOptions options = comm::from_environment();
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.world_size, 8);
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.local_world_size, 2);
  EXPECT_EQ(options.store, "tcp:10.0.0.1:29500");
  EXPECT_EQ(options.network_interface, "");
  EXPECT_EQ(options.job_secret, "");
  setenv("TORCHELASTIC_RUN_ID", "job", 1);
  EXPECT_EQ(comm::from_environment().store, "tcp:10.0.0.1:29501") << "29500 is PyTorch's own store";
  setenv("MASTER_ADDR", "fd00::1", 1);
  EXPECT_EQ(comm::from_environment().store, "tcp:[fd00::1]:29501");
}

TEST(Environment, OpenMpisVariablesAreRead) {
  // As `mpirun -np 4 --host a:2,b:2 env` prints them on b.
  const Variables set({{"OMPI_COMM_WORLD_RANK", "2"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  TransportOptions options = comm::from_environment();
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.world_size, 4);
  EXPECT_EQ(options.local_rank, 0);
  EXPECT_EQ(options.local_world_size, 2);
  EXPECT_EQ(options.store, "") << "mpi needs none";
  setenv("MASTER_ADDR", "a", 1);
  setenv("MASTER_PORT", "7000", 1);
  EXPECT_EQ(comm::from_environment().store, "tcp:a:7000") << "for gloo under mpirun";
}

TEST(Environment, SlurmsVariablesAreRead) {
  // As of `srun -N 3 -n 5`, in the last task.
  const Variables set({{"SLURM_PROCID", "4"},
                       {"SLURM_NTASKS", "5"},
                       {"SLURM_LOCALID", "0"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                       {"SLURM_TASKS_PER_NODE", "8(x3)"},
                       {"SLURM_STEP_NODELIST", "node[07-09]"},
                       {"SLURM_JOB_NODELIST", "node[01-09]"},
                       {"SLURM_LAUNCH_NODE_IPADDR", "10.1.0.9"},
                       {"SLURM_JOB_ID", "123456"},
                       {"SLURM_STEP_ID", "0"}});
  TransportOptions options = comm::from_environment();
  EXPECT_EQ(options.rank, 4);
  EXPECT_EQ(options.world_size, 5);
  EXPECT_EQ(options.local_rank, 0);
  EXPECT_EQ(options.local_world_size, 1);
  EXPECT_EQ(options.store, "tcp:node07:23456");
  setenv("SLURM_NODEID", "1", 1);
  setenv("SLURM_LOCALID", "1", 1);
  setenv("SLURM_STEP_ID", "1", 1);
  options = comm::from_environment();
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.local_world_size, 2);
  EXPECT_EQ(options.store, "tcp:node07:21375") << "another step, another port";
  setenv("MASTER_ADDR", "10.0.0.1", 1);
  setenv("MASTER_PORT", "7000", 1);
  EXPECT_EQ(comm::from_environment().store, "tcp:10.0.0.1:7000");
}

TEST(Environment, TheFirstHostOfAListIsFound) {
  const std::pair<const char*, const char*> cases[] = {
      {"alone", "tcp:alone:20001"},
      {"a,b", "tcp:a:20001"},
      {"gpu[3,5-7],x1", "tcp:gpu3:20001"},
      {"rack[2-3]n[010-011]", "tcp:rack2n010:20001"},
      {"n[1-2]-ib,z", "tcp:n1-ib:20001"}};
  for (const auto& [list, store] : cases) {
    const Variables set({{"SLURM_PROCID", "0"},
                         {"SLURM_NTASKS", "2"},
                         {"SLURM_NODELIST", list},
                         {"SLURM_JOB_ID", "1"}});
    EXPECT_EQ(comm::from_environment().store, store);
    EXPECT_EQ(comm::from_environment().local_world_size, 0) << "nothing says it";
    EXPECT_EQ(comm::from_environment().local_rank, -1);
  }
  const Variables set({{"SLURM_PROCID", "0"},
                       {"SLURM_NTASKS", "2"},
                       {"SLURM_LAUNCH_NODE_IPADDR", "10.1.0.9"},
                       {"SLURM_JOB_ID", "1"}});
  EXPECT_EQ(comm::from_environment().store, "tcp:10.1.0.9:20001");
}

TEST(Environment, OwnVariablesWin) {
  const Variables set({{"RANK", "3"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "3"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_RANK", "5"},
                       {"OMPI_COMM_WORLD_SIZE", "6"},
                       {"GRADWIRE_RANK", "1"},
                       {"GRADWIRE_WORLD_SIZE", "2"},
                       {"GRADWIRE_STORE", "file:/shared/run1"},
                       {"GRADWIRE_INTERFACE", "eth1"},
                       {"GRADWIRE_JOB_SECRET", "s3cret"}});
  TransportOptions options = comm::from_environment();
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.world_size, 2);
  EXPECT_EQ(options.local_rank, -1) << "torchrun's is that of another rank";
  EXPECT_EQ(options.local_world_size, 0);
  EXPECT_EQ(options.store, "file:/shared/run1");
  EXPECT_EQ(options.network_interface, "eth1");
  EXPECT_EQ(options.job_secret, "s3cret");
  setenv("GRADWIRE_LOCAL_RANK", "0", 1);
  setenv("GRADWIRE_LOCAL_WORLD_SIZE", "2", 1);
  EXPECT_EQ(comm::from_environment().local_rank, 0);
  EXPECT_EQ(comm::from_environment().local_world_size, 2);
}

// Meanings: NVIDIA's manual of NCCL_SOCKET_IFNAME, torch's of GLOO_SOCKET_IFNAME.
TEST(Environment, InterfacesThatOtherLibrariesWereToldAreTakenWhereNoneIsNamed) {
  const std::pair<const char*, const char*> cases[] = {{"eth", "eth*"},
                                                       {"eth0,ib", "eth0*,ib*"},
                                                       {"=eth0", "eth0"},
                                                       {"=eth0,eth1", "eth0,eth1"},
                                                       {"^docker", "^docker*"},
                                                       {"^docker,lo", "^docker*,lo*"},
                                                       {"^=eth0", "^eth0"},
                                                       {"=eth0:12345", "eth0"},
                                                       {"", ""}};
  for (const auto& [names, wish] : cases) {
    const Variables set({{"RANK", "0"},
                         {"WORLD_SIZE", "1"},
                         {"GRADWIRE_STORE", "file:/a"},
                         {"NCCL_SOCKET_IFNAME", names}});
    EXPECT_EQ(comm::from_environment().socket_interface, wish) << names;
    EXPECT_EQ(comm::from_environment().network_interface, "") << "mpi takes none";
  }
  const Variables set({{"NCCL_SOCKET_IFNAME", "ib"}, {"GLOO_SOCKET_IFNAME", "eth0,eth1"}});
  EXPECT_EQ(comm::socket_interface_from_environment(), "eth0,eth1");
  setenv("GRADWIRE_INTERFACE", "eth2", 1);
  EXPECT_EQ(comm::socket_interface_from_environment(), "eth2");
}

TEST(Environment, OfNestedLaunchersTheInnermostCounts) {
  const Variables set({{"SLURM_PROCID", "0"},
                       {"SLURM_NTASKS", "2"},
                       {"SLURM_NODELIST", "a,b"},
                       {"OMPI_COMM_WORLD_RANK", "5"},
                       {"OMPI_COMM_WORLD_SIZE", "6"}});
  EXPECT_EQ(comm::from_environment().rank, 5) << "mpirun in an allocation of SLURM";
  EXPECT_EQ(comm::from_environment().world_size, 6);
  for (const auto& [name, value] : {std::pair{"RANK", "9"},
                                    {"WORLD_SIZE", "12"},
                                    {"MASTER_ADDR", "a"},
                                    {"MASTER_PORT", "29500"},
                                    {"TORCHELASTIC_RUN_ID", "none"}}) {
    setenv(name, value, 1);
  }
  EXPECT_EQ(comm::from_environment().rank, 9) << "torchrun in tasks of mpirun";
  EXPECT_EQ(comm::from_environment().world_size, 12);
}

TEST(Environment, LaunchersThatContradictEachOtherAreNamed) {
  EXPECT_EQ(error_with({{"RANK", "1"},
                        {"WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_RANK", "0"},
                        {"OMPI_COMM_WORLD_SIZE", "2"}}),
            "environment: RANK is '1' (as of torchrun) and OMPI_COMM_WORLD_RANK is '0' (Open MPI), "
            "expected the same: unset those of one, or set GRADWIRE_RANK and GRADWIRE_WORLD_SIZE");
  EXPECT_EQ(error_with({{"RANK", "1"},
                        {"WORLD_SIZE", "2"},
                        {"SLURM_PROCID", "1"},
                        {"SLURM_NTASKS", "4"}}),
            "environment: WORLD_SIZE is '2' (as of torchrun) and SLURM_NTASKS is '4' (SLURM), "
            "expected the same: unset those of one, or set GRADWIRE_RANK and GRADWIRE_WORLD_SIZE");
  // A script that hands SLURM's numbers on is fine.
  const Variables set({{"RANK", "1"},
                       {"WORLD_SIZE", "4"},
                       {"MASTER_ADDR", "a"},
                       {"MASTER_PORT", "1"},
                       {"SLURM_PROCID", "1"},
                       {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(comm::from_environment().rank, 1);
}

TEST(Environment, WhatIsMissingOrMalformedIsNamed) {
  const std::pair<std::string, std::string> errors[] = {
      {error_with({}),
       "GRADWIRE_WORLD_SIZE is not set, expected GRADWIRE_RANK and GRADWIRE_WORLD_SIZE, or RANK "
       "and WORLD_SIZE (torchrun), or OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI), or "
       "SLURM_PROCID and SLURM_NTASKS (SLURM)"},
      {error_with({{"GRADWIRE_RANK", "1"}}), "GRADWIRE_WORLD_SIZE is not set, expected "},
      {error_with({{"GRADWIRE_WORLD_SIZE", "1"}}), "GRADWIRE_RANK is not set, expected "},
      {error_with({{"RANK", "1"}}), "GRADWIRE_WORLD_SIZE is not set, expected it or WORLD_SIZE"},
      {error_with({{"OMPI_COMM_WORLD_RANK", "1"}}),
       "GRADWIRE_WORLD_SIZE is not set, expected it or OMPI_COMM_WORLD_SIZE"},
      {error_with({{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
       "RANK is '4', expected a number from 0 to 3"},
      {error_with({{"RANK", "two"}, {"WORLD_SIZE", "4"}}),
       "RANK is 'two', expected a number from 0 to 3"},
      {error_with({{"RANK", "2"}, {"WORLD_SIZE", "4"}}),
       "GRADWIRE_STORE is not set, expected it or MASTER_ADDR"},
      {error_with({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "host"}}),
       "MASTER_PORT is not set"},
      {error_with({{"RANK", "2"},
                   {"WORLD_SIZE", "4"},
                   {"MASTER_ADDR", "host"},
                   {"MASTER_PORT", "29500x"}}),
       "MASTER_PORT is '29500x', expected a number from 1 to 65535"},
      {error_with({{"RANK", "2"},
                   {"WORLD_SIZE", "4"},
                   {"LOCAL_RANK", "2"},
                   {"LOCAL_WORLD_SIZE", "2"}}),
       "LOCAL_RANK is '2', expected a number from 0 to 1"},
      {error_with({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"GRADWIRE_LOCAL_RANK", "0"}}),
       "one of GRADWIRE_LOCAL_RANK and GRADWIRE_LOCAL_WORLD_SIZE is not set"},
      {error_with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}),
       "expected it, MASTER_ADDR or SLURM_STEP_NODELIST"},
      {error_with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_NODELIST", "a"}}),
       "MASTER_PORT is not set, expected it or SLURM_JOB_ID"},
      {error_with({{"SLURM_PROCID", "0"},
                   {"SLURM_NTASKS", "2"},
                   {"SLURM_NODEID", "3"},
                   {"SLURM_TASKS_PER_NODE", "2(x2)"}}),
       "SLURM_TASKS_PER_NODE is '2(x2)', node 3 (SLURM_NODEID) is not in it"},
      {error_with({{"SLURM_PROCID", "0"},
                   {"SLURM_NTASKS", "2"},
                   {"SLURM_NODEID", "3"},
                   {"SLURM_TASKS_PER_NODE", "many"}}),
       "SLURM_TASKS_PER_NODE is "}};
  for (const auto& [error, expected] : errors) {
    EXPECT_NE(error.find(expected), std::string::npos) << error << "\nexpected: " << expected;
  }
}

}  // namespace
}  // namespace gradwire::transport_test
