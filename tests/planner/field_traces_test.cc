// Traces as they lie about: of older PyTorch, of parts of a trace, and as chakra_jsonizer writes
// them. The texts were written for these tests, with the keys and the layout that the real ones
// have.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gradwire/planner/importers.h"
#include "tests/planner/message_of.h"

namespace gradwire::planner {
namespace {

// As PyTorch 1.13 to 2.1 write it: kernels have no operator's id and collectives no elements, but
// both the number of the launch. Thread 1 trains, thread 2 is autograd's. The GPU is 1000 us
// behind, so the kernels of the first step run in the second.
std::string older(const std::string& first_args, const std::string& second_args,
                  const std::string& type = "float") {
  return R"j({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
 "traceEvents": [
 {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "ts": 1000, "dur": 1000, "tid": 1},
 {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#8", "ts": 2000, "dur": 1000, "tid": 1},
 {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: X", "ts": 1200, "dur": 400,
  "tid": 2, "args": {"External id": 5}},
 {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
  "ts": 1110, "dur": 5, "tid": 1, "args": {"External id": 4}},
 {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 1300, "dur": 20, "tid": 2,
  "args": )j" +
         first_args + R"j(},
 {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 1500, "dur": 20, "tid": 2,
  "args": )j" +
         second_args + R"j(},
 {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 1500, "dur": 20, "tid": 3,
  "args": {"Input Dims": [[999]], "Input type": ["float"]}},
 {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 1001, "dur": 5, "tid": 1,
  "args": {"Collective name": "allreduce", "In msg nelems": 1, "dtype": "Long"}},
 {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 1010, "dur": 5, "tid": 1,
  "args": {"Collective name": "broadcast", "In msg nelems": 1, "dtype": "Double"}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1100, "dur": 5, "tid": 1,
  "args": {"correlation": 10}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1250, "dur": 5, "tid": 2,
  "args": {"correlation": 11}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1310, "dur": 5, "tid": 2,
  "args": {"correlation": 12}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1400, "dur": 5, "tid": 2,
  "args": {"correlation": 13}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": 1510, "dur": 5, "tid": 2,
  "args": {"correlation": 14}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1900, "dur": 5, "tid": 1,
  "args": {"correlation": 15}},
 {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 2100, "dur": 100,
  "args": {"External id": 10, "correlation": 10}},
 {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 2300, "dur": 100,
  "args": {"External id": 11, "correlation": 11}},
 {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce_RING_LL_Sum_)j" +
         type + R"j((ncclWorkElem)",
  "ts": 2400, "dur": 60, "args": {"External id": 12, "correlation": 12}},
 {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 2400, "dur": 200,
  "args": {"External id": 13, "correlation": 13}},
 {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce_RING_LL_Sum_)j" +
         type + R"j((ncclWorkElem)",
  "ts": 2600, "dur": 50, "args": {"External id": 14, "correlation": 14}},
 {"ph": "X", "cat": "kernel", "name": "sgd", "ts": 2700, "dur": 30,
  "args": {"External id": 15, "correlation": 15}}
]
})j";
}

TEST(OlderKineto, TakesElementsFromTheCallThatLaunchedTheKernel) {
  const Profile profile = import_kineto(
      older(R"j({"External id": 6, "Input Dims": [[20, 5]], "Input type": ["float"]})j",
            R"j({"External id": 7, "Input Dims": [[[300], [3, 2]]],
                              "Input type": ["TensorList"]})j"));
  ASSERT_EQ(profile.layers.size(), 2u);
  EXPECT_EQ(profile.layers[1].numel, 100u);
  EXPECT_EQ(profile.layers[0].numel, 306u);
  EXPECT_EQ(profile.layers[0].dtype, DType::kFloat32);
  EXPECT_EQ(profile.ranks, 8u);
  // Backward from 2300 to 2600; the forward kernel from 2100 on.
  EXPECT_NEAR(*profile.layers[1].ready_s, 100e-6, 1e-12);
  EXPECT_NEAR(*profile.layers[0].ready_s, 300e-6, 1e-12);
  EXPECT_NEAR(*profile.layers[1].exchange_s, 60e-6, 1e-12);
  EXPECT_NEAR(profile.other_s, 200e-6, 1e-12);
  EXPECT_NEAR(profile.update_s(), 80e-6, 1e-12);
}

TEST(OlderKineto, TypesAreThoseOfTheCallOrOfTheKernelsName) {
  const std::string half = R"j({"Input Dims": [[100]], "Input type": ["c10::Half"]})j";
  const std::string silent = R"j({"Input Dims": [[100]], "Input type": [""]})j";
  for (const auto& [type, dtype] :
       {std::pair{"half", DType::kFloat16}, std::pair{"__nv_bfloat16", DType::kBFloat16},
        std::pair{"bf16_RING_LL", DType::kBFloat16}, std::pair{"f32_RING_LL", DType::kFloat32}}) {
    const Profile profile = import_kineto(older(half, silent, type));
    EXPECT_EQ(profile.layers[1].dtype, DType::kFloat16) << type;
    EXPECT_EQ(profile.layers[0].dtype, dtype) << type;
  }
  const std::string message =
      message_of([&] { import_kineto(older(silent, silent, "double"), 0, "t.json"); });
  EXPECT_NE(message.find("Sum_double(ncclWorkElem)' does not say its type"), std::string::npos)
      << message;
}

TEST(OlderKineto, WhatItDoesNotSayIsAskedForAndTakenAsGiven) {
  const std::string text = older("{}", "{}");
  EXPECT_EQ(
      message_of([&] { import_kineto(text, 0, "t.json"); }),
      "t.json: 2 of the 2 all-reduces of step 0 do not say their elements, expected a trace "
      "that was recorded with record_shapes=True or by PyTorch from 2.2 on, or the elements of "
      "each, in the order in which they leave (--elements)");
  const std::vector<size_t> elements = {7, 70}, three = {1, 2, 3};
  const Profile profile = import_kineto(text, 0, "t.json", elements);
  EXPECT_EQ(profile.layers[1].numel, 7u);
  EXPECT_EQ(profile.layers[0].numel, 70u);
  EXPECT_EQ(
      message_of([&] { import_kineto(text, 0, "t.json", three); }),
      "t.json: elements of 3 all-reduces are given, step 0 has 2, expected one for each, in the "
      "order in which they leave");
}

TEST(OlderKineto, SumsOfCountsAreNoGradients) {
  EXPECT_EQ(message_of([] { import_kineto(older("{}", "{}", "int32_t"), 0, "t.json"); }),
            "t.json: step 0 has no all-reduce kernel, expected DistributedDataParallel over NCCL");
}

// A part of a trace in Chakra's older JSON: calls around the nodes are left out, and sizes.
constexpr const char* kPart = R"j({"workload_graph": [
  {"Id": 11, "Name": "gemm", "NodeType": 4, "ctrlDeps": [3], "data_deps": [], "runtime": 100,
   "is_cpu_op": false},
  {"Id": 12, "Name": "c10d::allreduce_(0)",
                     "NodeType" : 7,
                     "ctrlDeps" : [3], "data_deps" : [11], "runtime" : 9, "is_cpu_op" : true
},
  {"Id": 13, "Name": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
   "NodeType": 7, "ctrlDeps": [900], "data_deps": [12, 11], "runtime": 40, "is_cpu_op": false}],
  "workload_name": "w", "ngpus": 8, "soc": "s"
})j";

TEST(FieldChakra, ControlMayComeFromNodesThatAreNotThere) {
  const std::vector<size_t> elements = {1234};
  const Profile profile = import_chakra(kPart, 16, "part.json", elements);
  ASSERT_EQ(profile.layers.size(), 1u);
  EXPECT_EQ(profile.layers[0].numel, 1234u);
  EXPECT_NEAR(*profile.layers[0].ready_s, 100e-6, 1e-12);
  EXPECT_NEAR(*profile.layers[0].exchange_s, 40e-6, 1e-12);
  EXPECT_NE(message_of([] { import_chakra(kPart, 16, "part.json"); }).find("(--elements)"),
            std::string::npos);
  const std::vector<size_t> two = {1, 2};
  EXPECT_EQ(
      message_of([&] { import_chakra(kPart, 16, "part.json", two); }),
      "part.json: elements of 2 all-reduces are given, the trace has 1, expected one for each, "
      "in the order in which they leave");
}

// As in Chakra's own sample: kernels of NCCL depend on what the host did alone.
TEST(FieldChakra, WhatWaitsForTheHostAloneLeavesBehindWhatStandsBeforeIt) {
  const std::vector<size_t> elements = {10, 20};
  const Profile profile = import_chakra(R"j([
    {"Id": 1, "Name": "call", "NodeType": 7, "data_deps": [], "runtime": 9, "is_cpu_op": true},
    {"Id": 2, "Name": "gemm", "NodeType": 4, "data_deps": [], "runtime": 100, "is_cpu_op": false},
    {"Id": 3, "Name": "ncclKernel_AllReduce_RING_LL_Sum_float", "NodeType": 7, "data_deps": [1],
     "runtime": 40, "is_cpu_op": false},
    {"Id": 4, "Name": "gemm", "NodeType": 4, "data_deps": [], "runtime": 50, "is_cpu_op": false},
    {"Id": 5, "Name": "ncclKernel_AllReduce_RING_LL_Sum_float", "NodeType": 7, "data_deps": [1],
     "runtime": 30, "is_cpu_op": false}])j",
                                        1, "t", elements);
  ASSERT_EQ(profile.layers.size(), 2u);
  EXPECT_EQ(profile.layers[1].numel, 10u);
  EXPECT_NEAR(*profile.layers[1].ready_s, 100e-6, 1e-12);
  EXPECT_NEAR(*profile.layers[0].ready_s, 150e-6, 1e-12);
}

// With nothing between the objects, 64-bit numbers as text, and what is 0 left out: the id of the
// first node, and the type of one.
constexpr const char* kJsonizer = R"j({
  "version": "0.0.4",
  "attr": [{"name": "schema", "stringVal": "1.0.2-chakra.0.0.4"}]
}{
  "name": "a {brace} and a \"quote",
  "type": "COMP_NODE",
  "durationMicros": "100",
  "attr": [{"name": "is_cpu_op", "boolVal": false}]
}{
  "id": "1",
  "name": "[pytorch|profiler|execution_trace|process]"
}{
  "id": "2",
  "name": "record_param_comms",
  "type": "COMM_COLL_NODE",
  "ctrlDeps": ["1"],
  "dataDeps": ["0"],
  "inputs": {"values": "[[0]]", "shapes": "[[[500, 2]], []]",
             "types": "['GenericList[Tensor(c10::BFloat16)]', 'Int']"},
  "attr": [{"name": "is_cpu_op", "boolVal": true}, {"name": "comm_type", "int64Val": "0"}]
}{
  "id": "3",
  "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
                     "type" : "COMM_COLL_NODE",
                     "ctrlDeps" : ["2"],
                     "durationMicros" : "25",
                     "attr"
    : [ {"name" : "is_cpu_op", "boolVal" : false}, {"name" : "comm_type", "int64Val" : "0"} ]
}{
  "id": "4",
  "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
  "type": "COMM_COLL_NODE",
  "ctrlDeps": ["0"],
  "durationMicros": "5",
  "attr": [{"name": "is_cpu_op", "boolVal": false}, {"name": "comm_type", "int64Val": "0"},
           {"name": "comm_size", "int64Val": "6"}]
})j";

TEST(FieldChakra, ObjectsMayStandOneBehindAnother) {
  const Profile profile = import_chakra(kJsonizer, 1, "jsonizer.json");
  ASSERT_EQ(profile.layers.size(), 2u);
  EXPECT_EQ(profile.layers[1].numel, 1000u);  // of the call that the kernel waits for
  EXPECT_EQ(profile.layers[0].numel, 3u);     // six bytes of bfloat16
  for (const LayerProfile& layer : profile.layers) {
    EXPECT_EQ(layer.dtype, DType::kBFloat16);
    EXPECT_NEAR(*layer.ready_s, 100e-6, 1e-12);
  }
  EXPECT_NEAR(*profile.layers[1].exchange_s, 25e-6, 1e-12);
}

TEST(FieldChakra, OfObjectsOneBehindAnotherTheBrokenOneIsNamed) {
  const std::string text = std::string(kJsonizer) + "{\"id\": \"5\", ";
  EXPECT_NE(message_of([&] { import_chakra(text, 1, "j"); }).find("not JSON here"),
            std::string::npos);
}

TEST(Json, IsReadNoDeeperThanAnyFileIs) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(message_of([&] { import_kineto(nested(101), 0, "t"); }),
            "t: nested more than 100 deep, expected less in a file of this kind");
  EXPECT_EQ(message_of([&] { import_kineto(nested(100), 0, "t"); }),
            "t: an array of 1, must be an object");
}

}  // namespace
}  // namespace gradwire::planner
