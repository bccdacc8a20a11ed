// Importers: what each format says comes through, and what cannot be right is refused by line.

#include "gradwire/planner/importers.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

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

}  // namespace
}  // namespace gradwire::planner
