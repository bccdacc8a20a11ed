// Chakra traces written here, against times added up on paper.

#include <gtest/gtest.h>

#include "gradwire/planner/importers.h"
#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

// 3 ms and 1 ms of kernels, whose gradients travel; 2 ms after both; a host op beside them.
constexpr const char* kTwo = R"({"nodes": [
  {"id": "9", "name": "adam", "type": "COMP_NODE", "duration_micros": "2000", "data_deps": ["7", "8"]},
  {"id": "8", "name": "b", "type": "COMM_COLL_NODE", "data_deps": ["5"], "duration_micros": 250,
   "attr": [{"name": "comm_type", "int64_val": "0"}, {"name": "comm_size", "int64_val": "4000"}]},
  {"id": "7", "name": "a", "type": "COMM_COLL_NODE", "ctrl_deps": ["4"], "duration_micros": 500,
   "attr": [{"name": "comm_size", "uint64_val": 80}, {"name": "comm_type", "int64_val": 0}]},
  {"id": "4", "name": "f", "type": "COMP_NODE", "duration_micros": "3000"},
  {"id": "5", "name": "g", "type": "COMP_NODE", "duration_micros": "1000", "data_deps": ["4", "6"]},
  {"id": "6", "name": "host", "type": "COMP_NODE", "duration_micros": "70000",
   "attr": [{"name": "is_cpu_op", "bool_val": true}]}]})";

TEST(Chakra, BucketsAreThereWhenWhatTheyWaitForHasRun) {
  const Profile profile = import_chakra(kTwo, 32, "two.json");
  ASSERT_EQ(profile.layers.size(), 2u);
  const LayerProfile &last = profile.layers[0], &first = profile.layers[1];
  EXPECT_EQ(first.numel, 20u);
  EXPECT_NEAR(*first.ready_s, 3e-3, 1e-12);
  EXPECT_NEAR(*first.exchange_s, 5e-4, 1e-12);
  EXPECT_EQ(last.numel, 1000u);
  EXPECT_NEAR(*last.ready_s, 4e-3, 1e-12);
  EXPECT_NEAR(profile.backward_s(), 4e-3, 1e-12);
  EXPECT_NEAR(profile.update_s(), 2e-3, 1e-12);
  EXPECT_EQ(profile.batch, 32u);
}

TEST(Chakra, TheFieldsOfItsOlderJsonAreKnown) {
  const Profile profile = import_chakra(R"({"workload_graph": [
    {"Id": 1, "Name": "k", "NodeType": 4, "data_deps": [], "runtime": 10, "is_cpu_op": false},
    {"Id": 2, "Name": "launch", "NodeType": 7, "data_deps": [1], "runtime": 9, "is_cpu_op": true},
    {"Id": 3, "Name": "ncclKernel_AllReduce", "NodeType": 7, "data_deps": [2], "runtime": 7,
     "is_cpu_op": false, "comm_size": 4}]})",
                                        1);
  ASSERT_EQ(profile.layers.size(), 1u);
  EXPECT_NEAR(*profile.layers[0].ready_s, 1e-5, 1e-15);
}

TEST(Chakra, WhatCannotBeNamesThePlace) {
  const auto message = [](const std::string& nodes) {
    return message_of([&] { import_chakra(nodes, 1, "t"); });
  };
  const std::string reduce =
      R"({"id": 2, "name": "r", "type": 7, "data_deps": [1], "comm_type": 0, "comm_size": 8})";
  EXPECT_EQ(message(R"([{"id": 1, "name": "k", "type": 4, "data_deps": [2]}, )" + reduce + "]"),
            "t: [0]: node 'k' waits for a cycle of nodes, expected dependencies without one");
  EXPECT_EQ(message(R"([{"id": 1, "type": 4, "duration_micros": -5}, )" + reduce + "]"),
            "t: [0].duration_micros: -5, must be a time of at least 0 us");
  EXPECT_EQ(message("[" + reduce + "]"),
            "t: [0].data_deps[0]: 1, expected the id of a node in the trace: one is missing");
  EXPECT_EQ(message(R"([{"id": 1, "type": 4, "duration_micros": 5}])"),
            "t: no all-reduce on the device, expected one per bucket of gradients: all layers are "
            "missing");
  EXPECT_EQ(
      message(R"([{"id": 1, "name": "r", "type": 7, "comm_type": 0}])"),
      "t: [0]: all-reduce 'r' has no comm_size and no shapes of inputs, expected one of them, or "
      "the elements of each all-reduce, in the order in which they leave (--elements)");
  EXPECT_EQ(
      message(R"([{"id": 1, "name": "r", "type": 7, "comm_type": 0, "comm_size": 6}])"),
      "t: [0].comm_size: 6, must be bytes of gradient, 4 an element: a multiple of it above 0");
  EXPECT_EQ(message(R"([{"id": 1, "type": 4}, {"id": 1, "type": 4}])"),
            "t: [1].id: 1 is another node's too, expected each once");
  EXPECT_EQ(
      message(R"({"schema": "1.1.1-chakra.0.0.4", "pid": 3, "nodes": [{"id": 2, "name": "aten::mm",
                  "ctrl_deps": 1, "attr": [{"name": "tid", "type": "uint64", "value": 1}]}]})"),
      "t: is PyTorch's execution trace (ExecutionTraceObserver, schema \"1.1.1-chakra.0.0.4\"), expected "
      "a Chakra trace in JSON: chakra_trace_link joins this file and the Kineto trace of the same step, "
      "chakra_converter makes a Chakra trace of both, chakra_jsonizer writes it as JSON; or give the "
      "Kineto trace itself (--format kineto)");
  EXPECT_EQ(message("{}"),
            "t: no list of nodes, expected an array, objects one behind another, or an object with "
            "'nodes' or 'workload_graph'");
}

}  // namespace
}  // namespace gradwire::planner
