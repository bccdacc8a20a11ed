// Importers: what each format says comes through, and what cannot be right is refused by line.

#include "gradwire/planner/importers.h"

#include <gtest/gtest.h>

#include <string>

#include "gradwire/kernels/core/error.h"
#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

const std::string kColumns =
    "# a comment\n"
    "Id\tName\tForward\tBackward\tComm\tSize\n"
    "0\tdata\t1000\t0\t0\t0\n"
    "1\tconv 1\t250.5\t500\t0\t400\n"
    "2\tfc\t125\t250\t3000\t4000\n";

TEST(Columns, AreReadInMicrosecondsAndBytes) {
  const Profile profile = import_columns(kColumns);
  ASSERT_EQ(profile.layers.size(), 3u);
  EXPECT_EQ(profile.layers[1].name, "conv 1");
  EXPECT_EQ(profile.layers[1].numel, 100u);
  EXPECT_DOUBLE_EQ(profile.layers[1].forward_s, 250.5e-6);
  EXPECT_DOUBLE_EQ(profile.layers[1].backward_s, 500e-6);
  EXPECT_FALSE(profile.layers[1].exchange_s.has_value());
  EXPECT_DOUBLE_EQ(*profile.layers[2].exchange_s, 3e-3);
  EXPECT_EQ(profile.layers[0].numel, 0u);
}

TEST(Columns, SurviveARoundTrip) {
  const Profile profile = import_columns(kColumns);
  EXPECT_EQ(to_columns(profile), kColumns.substr(kColumns.find('\n') + 1));
}

TEST(Columns, MayBeSeparatedByCommasOrSpacesAndInAnyOrder) {
  const Profile profile = import_columns("Name,Id,Size,Comm,Backward,Forward\na,0,4,1,2,3\n");
  EXPECT_EQ(profile.layers[0].name, "a");
  EXPECT_DOUBLE_EQ(profile.layers[0].forward_s, 3e-6);
  EXPECT_DOUBLE_EQ(profile.layers[0].backward_s, 2e-6);
  EXPECT_EQ(import_columns("Id Name  Forward Backward Comm Size\n0 a   3 2 1 4\n").numel(), 1u);
}

TEST(Columns, RefusedByLine) {
  const auto refusal = [](const std::string& from, const std::string& to) {
    std::string text = kColumns;
    text.replace(text.find(from), from.size(), to);
    return message_of([&] { import_columns(text, "t.txt"); });
  };
  EXPECT_EQ(refusal("1\tconv", "2\tconv"),
            "t.txt: line 4: Id: 2, must be 1: a layer is missing, or out of order");
  EXPECT_EQ(refusal("\t500\t", "\t-500\t"),
            "t.txt: line 4: Backward: -500 us, must be a time of at least 0 us");
  EXPECT_EQ(refusal("\t500\t", "\tslow\t"), "t.txt: line 4: Backward: 'slow', must be a number");
  EXPECT_EQ(
      refusal("Size", "Bytes"),
      "t.txt: line 2: column: unknown name 'Bytes', known: Id, Name, Forward, Backward, Comm, "
      "Size");
  EXPECT_EQ(refusal("\t400\n", "\t401\n"),
            "t.txt: line 4: Size: 401 bytes, must be a multiple of 4, of a float32 gradient");
  EXPECT_EQ(refusal("\t400\n", "\n"), "t.txt: line 4: 5 cells, must be 6, one per column");
  EXPECT_EQ(refusal("data\t1000\t0\t0\t0", "data\t1000\t0\t7\t0"),
            "t.txt: line 3: Comm: 7 us of 0 bytes, must be 0");
  EXPECT_EQ(refusal("\t500\t", "\t5e12\t"),
            "t.txt: layers[1] 'conv 1': backward_s: 5e+06 s, must be at most 3600 s; was it "
            "written in milliseconds or microseconds?");
  EXPECT_EQ(message_of([] { import_columns("", "t.txt"); }),
            "t.txt: 0 lines with something in them, expected a line of column names and rows under "
            "it");
}

const std::string kLog =
    "I0214 23:25:18 37167 distributed.cpp:112] [0, 100, 0, 0, 0]\n"
    "I0214 23:25:18 37167 distributed.cpp:112] [1, 10, 0, 0, 0]\n"
    "I0214 23:25:18 37167 distributed.cpp:112] [2, 7, 0, 0, 0]\n"
    "I0214 23:25:19 37167 distributed.cpp:112] [0, 100, 500.5, 60, 90]\n"
    "I0214 23:25:19 37167 distributed.cpp:112] [1, 10, 500.5, 20, 0]\n"
    "I0214 23:25:19 37167 distributed.cpp:112] [2, 7, 250, 5, 0]\n";

TEST(BCaffe, CountsASharedBackwardTimeOnceAndLeavesOutWarmUp) {
  const Profile profile = import_b_caffe(kLog, BCaffeTimes::kLayers);
  ASSERT_EQ(profile.layers.size(), 3u);
  EXPECT_EQ(profile.layers[0].backward_s, 0);
  EXPECT_DOUBLE_EQ(profile.layers[1].backward_s, 500.5e-6);
  EXPECT_DOUBLE_EQ(profile.layers[2].backward_s, 250e-6);
  EXPECT_EQ(profile.layers[2].numel, 7u);
  EXPECT_DOUBLE_EQ(*profile.layers[1].exchange_s, 20e-6);
  const Profile merged = import_b_caffe(kLog, BCaffeTimes::kMerged);
  EXPECT_DOUBLE_EQ(*merged.layers[0].exchange_s, 90e-6);
  EXPECT_FALSE(merged.layers[1].exchange_s.has_value());
}

TEST(BCaffe, RefusedByLine) {
  const auto refusal = [](const std::string& from, const std::string& to,
                          BCaffeTimes times = BCaffeTimes::kLayers) {
    std::string text = kLog;
    text.replace(text.find(from), from.size(), to);
    return message_of([&] { import_b_caffe(text, times, "a.log"); });
  };
  EXPECT_EQ(refusal("[1, 10, 500.5", "[2, 10, 500.5"),
            "a.log: line 5: id: 2, must be 1: a row is missing, or out of order");
  EXPECT_EQ(refusal("[2, 7, 250, 5, 0]", "[2, 7, 250, 5]"),
            "a.log: line 6: 4 numbers in the row, must be 5 as in those before it");
  EXPECT_EQ(refusal("I0214 23:25:19 37167 distributed.cpp:112] [2, 7, 250, 5, 0]\n", ""),
            "a.log: the last iteration has 2 rows, must have 3");
  EXPECT_EQ(
      refusal("[2, 7, 250, 5, 0]", "backward done"),
      "a.log: line 6: 'I0214 23:25:19 37167 distributed.cpp:112] backward done', must end with "
      "a row [id, elements, times]");
  EXPECT_EQ(refusal("250, 5, 0]", "-250, 5, 0]"),
            "a.log: line 6: backward: -250 us, must be a time of at least 0 us");
  EXPECT_EQ(refusal("60, 90]", "60, 0]", BCaffeTimes::kMerged),
            "a.log: 2 iterations without times of backward or of the exchanges asked for, expected "
            "one with");
}

TEST(Layers, TakeTheirTimesFromTheirWork) {
  const std::string table = "forward_order,tensor,elements\n0,w,1000\n1,b,10\n";
  const TableOptions options{.flops_per_s = 1e9, .batch = 4, .flops_per_element = 2};
  const Profile profile = import_layers(table, options);
  EXPECT_DOUBLE_EQ(profile.layers[0].forward_s, 2.0 * 1000 * 4 / 1e9);
  EXPECT_DOUBLE_EQ(profile.layers[0].backward_s, 2 * 2.0 * 1000 * 4 / 1e9);
  EXPECT_EQ(profile.numel(), 1010u);
  const Profile counted =
      import_layers("tensor,elements,flops\nw,1000,5e6\n", {.flops_per_s = 1e9});
  EXPECT_DOUBLE_EQ(counted.layers[0].forward_s, 5e-3);
  EXPECT_EQ(
      message_of([&] { import_layers(table, {.flops_per_s = 12}, "t.csv"); }),
      "t.csv: flops_per_s: 12, must be in [1e6, 1e18] operations per second; was it written in "
      "GFLOP/s or TFLOP/s?");
  EXPECT_EQ(message_of([&] { import_layers(table, {.flops_per_s = 1e9}, "t.csv"); }),
            "t.csv: no column 'flops' and flops_per_element is 0, expected one of them: how much "
            "work is a layer?");
}

// A step of 1000 us that begins at 5000: forward kernels from 5010, backward from 5300 to 5700, two
// all-reduces, an update until 5950.
const std::string kTrace = R"({"traceEvents": [
 {"cat": "user_annotation", "name": "ProfilerStep#4", "ts": 5000, "dur": 1000, "tid": 1},
 {"cat": "user_annotation", "name": "ProfilerStep#3", "ts": 100, "dur": 50, "tid": 1},
 {"cat": "cpu_op", "name": "aten::conv2d", "ts": 5005, "dur": 5, "tid": 1,
  "args": {"External id": 10}},
 {"cat": "cpu_op", "name": "autograd::engine::evaluate_function: X", "ts": 5200, "dur": 50, "tid": 2,
  "args": {"External id": 20}},
 {"cat": "cpu_op", "name": "aten::mm", "ts": 5210, "dur": 5, "tid": 2, "args": {"External id": 21}},
 {"cat": "kernel", "name": "gemm", "ts": 5010, "dur": 200, "args": {"External id": 10}},
 {"cat": "kernel", "name": "gemm", "ts": 5300, "dur": 100, "args": {"External id": 21}},
 {"cat": "kernel", "name": "gemm", "ts": 5600, "dur": 100, "args": {"External id": 21}},
 {"cat": "kernel", "name": "ncclKernel_AllReduce", "ts": 5660, "dur": 80, "args": {"Collective name":
  "allreduce", "In msg nelems": 30, "dtype": "Half", "Group size": 4}},
 {"cat": "kernel", "name": "ncclKernel_AllReduce", "ts": 5400, "dur": 60, "args": {"Collective name":
  "allreduce", "In msg nelems": 10, "dtype": "Float", "Group size": 4}},
 {"cat": "kernel", "name": "ncclKernel_Broadcast", "ts": 5001, "dur": 1, "args": {}},
 {"cat": "kernel", "name": "sgd", "ts": 5900, "dur": 50, "args": {"External id": 11}},
 {"ph": "M", "name": "process_name"}
]})";

TEST(Kineto, AnAllReducedBucketIsALayer) {
  const Profile profile = import_kineto(kTrace, 1);
  ASSERT_EQ(profile.layers.size(), 2u);
  EXPECT_EQ(profile.layers[1].name, "bucket 0");  // the first to leave holds the last layers
  EXPECT_EQ(profile.layers[1].numel, 10u);
  EXPECT_EQ(profile.layers[0].numel, 30u);
  EXPECT_EQ(profile.layers[0].dtype, DType::kFloat16);
  EXPECT_NEAR(*profile.layers[1].ready_s, 100e-6, 1e-12);
  EXPECT_NEAR(*profile.layers[0].ready_s, 360e-6, 1e-12);
  EXPECT_NEAR(*profile.layers[0].exchange_s, 80e-6, 1e-12);
  EXPECT_NEAR(profile.backward_s(), 400e-6, 1e-12);
  EXPECT_NEAR(profile.other_s, 290e-6, 1e-12);  // from the first kernel to backward
  EXPECT_NEAR(*profile.measured_step_s, 1000e-6, 1e-12);
  EXPECT_NEAR(profile.update_s(), 210e-6, 1e-12);  // after the last all-reduce
  EXPECT_NEAR(*profile.layers[1].update_s, 210e-6 / 4, 1e-12);
  EXPECT_EQ(profile.ranks, 4u);
}

TEST(Kineto, WhatIsMissingIsNamed) {
  EXPECT_EQ(message_of([] { import_kineto(kTrace, 2, "t.json"); }),
            "t.json: step 2, must be below 2, the trace's steps");
  EXPECT_EQ(message_of([] { import_kineto(kTrace, 0, "t.json"); }),
            "t.json: step 0 has no all-reduce kernel, expected DistributedDataParallel over NCCL");
  EXPECT_EQ(message_of([] { import_kineto("{}", 0, "t.json"); }),
            "t.json: no key 'traceEvents', expected one");
  EXPECT_EQ(message_of([] { import_kineto("{\"traceEvents\": []}", 0, "t.json"); }),
            "t.json: no ProfilerStep events, expected a trace of torch.profiler with its step() "
            "called");
  std::string text = kTrace;
  text.replace(text.find("\"Half\""), 6, "\"Double\"");
  EXPECT_EQ(
      message_of([&] { import_kineto(text, 1, "t.json"); }),
      "t.json: traceEvents[8].args.dtype: unknown name 'Double', known: Float, Half, BFloat16");
}

TEST(Kineto, SumsOfCountsAreNoGradients) {
  std::string text = kTrace;
  text.replace(text.find("\"Half\""), 6, "\"Long\"");
  const Profile profile = import_kineto(text, 1);
  ASSERT_EQ(profile.layers.size(), 1u);
  EXPECT_EQ(profile.layers[0].numel, 10u);
}

const std::string kGraph =
    "node3 -- Linear(8, 2) -- forward_compute_time=1.5, backward_compute_time=3.0, "
    "activation_size=[6.0; 1.0], parameter_size=64.000\n"
    "node1 -- Input0 -- forward_compute_time=10.0, backward_compute_time=0.000, "
    "activation_size=0.0, parameter_size=0.000\n"
    "node2 -- ReLU(inplace) -- forward_compute_time=0.5, backward_compute_time=0.25, "
    "activation_size=4.0, parameter_size=0.000\n"
    "\tnode1 -- node3\n"
    "\tnode3 -- node2\n";

TEST(PipeDream, LayersFollowTheEdges) {
  const Profile profile = import_pipedream(kGraph, 128);
  ASSERT_EQ(profile.layers.size(), 2u);
  EXPECT_EQ(profile.layers[0].name, "node3 Linear(8, 2)");
  EXPECT_EQ(profile.layers[0].numel, 16u);
  EXPECT_DOUBLE_EQ(profile.layers[0].forward_s, 1.5e-3);
  EXPECT_DOUBLE_EQ(profile.layers[0].backward_s, 3e-3);
  EXPECT_EQ(profile.layers[1].numel, 0u);
  EXPECT_DOUBLE_EQ(profile.io_s, 10e-3);
  EXPECT_EQ(profile.batch, 128u);
}

TEST(PipeDream, CyclesAndStrangersAreRefused) {
  EXPECT_EQ(message_of([] { import_pipedream(kGraph + "\tnode2 -- node3\n", 1, "g.txt"); }),
            "g.txt: a cycle among 2 nodes, 'node2' one of them or after it, expected an order "
            "without one");
  EXPECT_EQ(message_of([] { import_pipedream(kGraph + "\tnode2 -- node9\n", 1, "g.txt"); }),
            "g.txt: line 6: no node 'node9', expected one of those with times");
  EXPECT_EQ(message_of([] { import_pipedream("node1\n", 1, "g.txt"); }),
            "g.txt: line 1: 'node1', must be 'node -- layer -- times' or 'node -- node'");
  EXPECT_EQ(message_of([] {
              import_pipedream("a -- b -- forward_compute_time=1.0, parameter_size=0\n", 1, "g");
            }),
            "g: line 1: no 'backward_compute_time=', expected one");
}

}  // namespace
}  // namespace gradwire::planner
