#pragma once
// Profiles from what others write: columns, logs, traces, graphs and tables of layers. `name`
// stands in front of every message, with the line or place in the text; what a format does not
// know, and what cannot be right, is refused (InvalidArgument).

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "gradwire/planner/profile.h"

namespace gradwire::planner {

/// The columns of the S-SGD traces (Shi et al., arXiv:1805.03812), separated by tabs, commas or
/// spaces under a line that names them: Id, Name, Forward, Backward, Comm (microseconds), Size
/// (bytes of a float32 gradient). Ids count from 0 in the order of forward. Comm 0: not exchanged
/// by itself. Lines that begin with # are left out.
Profile import_columns(std::string_view text, std::string_view name = "columns");

/// Which time of a B-Caffe log becomes exchange_s.
enum class BCaffeTimes : uint8_t { kLayers, kMerged };

/// A log of B-Caffe (github.com/hclhkbu/B-Caffe): rows [id, elements, backward us, exchange us of
/// the tensor, exchange us of what was merged] in the order of forward, the last column not in all
/// logs, 0 for what travelled with another one. Consecutive tensors with the same backward time
/// share a layer, whose time counts once. The last iteration that has times is read (those before
/// it are warm-up). Forward times are not in it: calibrated() adds a constant.
Profile import_b_caffe(std::string_view text, BCaffeTimes times, std::string_view name = "log");

/// A Kineto trace of PyTorch's DistributedDataParallel on one GPU per rank (the JSON of
/// torch.profiler, not compressed): one layer per all-reduced bucket, with its elements, when it
/// left and how long it took; forward, backward and update from the kernels between them. `step`
/// counts the trace's ProfilerStep events from 0. Elements of an all-reduce are its kernel's "In
/// msg nelems" (PyTorch from 2.2 on), else the "Input Dims" of the call that launched it;
/// `elements`, where given, says those of each all-reduce of the step, in the order in which they
/// leave.
Profile import_kineto(std::string_view json, size_t step = 0, std::string_view name = "trace",
                      std::span<const size_t> elements = {});

/// A Chakra execution trace (github.com/mlcommons/chakra) of one worker in JSON: nodes with id,
/// type, data_deps, ctrl_deps, duration_micros and attributes, in an array, under "nodes" or
/// "workload_graph", or one behind another as chakra_jsonizer writes them. One layer per all-reduce
/// of the device, of `comm_size` bytes, else of the shapes that it was called with, else of the
/// `elements` given in the order in which they leave. ctrl_deps may name nodes that are not there,
/// as those of a part of a trace do. Computing runs
/// one node after another, the host's (is_cpu_op) only where there is no other. Forward and
/// backward are not told apart: what runs until the last gradient is there counts as backward, what
/// follows as update. @throws InvalidArgument also for a cycle, a node that is missing, no
/// all-reduce.
Profile import_chakra(std::string_view json, size_t batch, std::string_view name = "trace",
                      std::span<const size_t> elements = {});

/// A layer graph of PipeDream's profiler (github.com/msr-fiddle/pipedream): nodes with forward and
/// backward milliseconds and bytes of parameters, and edges, along which the layers are put into
/// order. Inputs, which load data, become io_s. @throws InvalidArgument also for a cycle.
Profile import_pipedream(std::string_view text, size_t batch, std::string_view name = "graph");

/// How fast a machine computes what a table of layers counts.
struct TableOptions {
  double flops_per_s = 0;  ///< that it really reaches; must be given
  size_t batch = 1;
  /// Forward FLOPs per sample and element of a tensor, where the table has no column of FLOPs: 2
  /// for a fully connected layer, 2 times the tokens of a sample for a transformer's matrices.
  double flops_per_element = 0;
  double backward_ratio = 2;  ///< backward over forward
};

/// A CSV table of layers under a line that names its columns: tensor and elements, and if known
/// forward_order (counts from 0) and flops (forward, of one sample).
Profile import_layers(std::string_view csv, const TableOptions& options,
                      std::string_view name = "table");

}  // namespace gradwire::planner
