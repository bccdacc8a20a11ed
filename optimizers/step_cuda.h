#pragma once
// A step on one GPU. Everything about parameters lies in tables in its memory, so that a step is
// three to six launches for any number of them (and one for each sum over ranks), and a captured
// step follows what the tables say. Nothing is allocated and nothing waits.

#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/payload_read_cuda.h"
#include "gradwire/optimizers/step_rule.h"

namespace gradwire::cuda {

/// A parameter and its settings; pointers are to the GPU's memory.
struct StepItem : StepSettings {
  std::byte* value = nullptr;
  const std::byte* gradient = nullptr;    ///< null, and no source: it is left out
  const PayloadSource* source = nullptr;  ///< in its place: read from element source_begin on
  uint64_t source_begin = 0;
  float* master = nullptr;              ///< of values of 16 bits; null: the value itself,
  uint16_t* remainder = nullptr;        ///< or the value is its upper half and these the lower
  float* state[2] = {};                 ///< as the optimizer's state_names(); null:
  uint8_t* codes[2] = {};               ///< their codes, which may be written in eights,
  float* scales[2] = {};                ///< and those of codes
  uint64_t draw_key = 0;                ///< of random rounding
  uint64_t numel = 0;
  uint32_t first_block = 0;  ///< among all blocks
  uint32_t block_count = 0;
  DType value_type = DType::kFloat32, gradient_type = DType::kFloat32;
};

/// kStepBlock elements of a parameter.
struct StepBlock {
  uint32_t item;
  uint32_t place;  ///< among the item's blocks
};

/// What the step at hand does to a parameter.
struct ItemStep {
  MomentumFactors momentum;
  AdamFactors adam;
  uint64_t steps;  ///< before this one
  float rate;      ///< of adam
  uint32_t fresh;  ///< it has made no step: its master is the value as it is
};

/// Why steps change nothing until the host has heard of it.
enum class StepFault : uint32_t {
  kNone,
  kNonFinite,
  kLearningRate,
  kLossScale,
  kPayloads,   ///< a gradient comes from payloads of which nothing can be read
  kNotReading  ///< or from any, and the step has no kernels that read them
};

/// The fault_item of what happened to another rank's slices.
inline constexpr uint32_t kElsewhere = 0xFFFFFFFF;

/// What kernels and the host tell each other; zero at first.
struct OptimizerWords {
  uint64_t skipped;      ///< steps left out
  double learning_rate;  ///< of the step at hand
  double fault_value;    ///< of kLearningRate and kLossScale
  float factor;          ///< what the step multiplies gradients by
  StepFault fault;
  uint32_t fault_item;  ///< the first parameter it is about
  uint32_t going;       ///< whether the step at hand changes anything
  uint32_t bad_block;   ///< ~ the first block with a gradient that is not finite; 0: none
  uint32_t elsewhere;   ///< whether another rank's slices keep this step from being made
  uint32_t arrived;     ///< of is_last_block()
};

struct StepTables {
  const StepItem* items;
  const StepBlock* blocks;
  size_t item_count, block_count;
  ItemStep* steps;        ///< per item
  uint64_t* counts;       ///< per item: its number of steps
  double* item_sums;      ///< per item
  double* slice_sums;     ///< two per item and one more: what ranks add up
  double* value_squares;  ///< per block
  double* change_squares;
  OptimizerWords* words;
};

struct StepRequest {
  StepOptions options;
  StepRule rule;
  bool reads = false;  ///< some gradient comes from payloads
};

/// Enqueues a step with the CPU's bits. What on_device.add_up throws comes out.
void step(const StepTables& tables, const StepRequest& request, Stream& stream);

/// Enqueues taking values as they are for their masters.
void take_values(const StepTables& tables, Stream& stream);

/// Of local steps, whose anchor is the first state: enqueues taking values for anchors, and writing
/// anchor - value to the gradients.
void take_anchors(const StepTables& tables, Stream& stream);
void write_moves(const StepTables& tables, Stream& stream);

}  // namespace gradwire::cuda
