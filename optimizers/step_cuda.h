#pragma once
// A step on one GPU. Everything about parameters lies in tables in its memory, so that a step is
// three to six launches for any number of them (and one for each sum over ranks; of 1-bit optimizers
// up to eleven), and a captured step follows what the tables say. Nothing is allocated and nothing waits.

#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/payload_read_cuda.h"
#include "gradwire/optimizers/onebit_rule.h"
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
  float* state[3] = {};                 ///< as the optimizer's state_names(); null:
  uint8_t* codes[3] = {};               ///< their codes, which may be written in eights,
  float* scales[3] = {};                ///< and those of codes
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
  kPayloads,    ///< a gradient comes from payloads of which nothing can be read
  kNotReading,  ///< or from any, and the step has no kernels that read them
  kUnprepared,  ///< of 1-bit optimizers: momentum was not exchanged,
  kScaled,      ///< or was made of gradients with another scale,
  kUnwritable   ///< or had no memory to be written to: a gradient comes from payloads
};

/// What OptimizerWords::going may be beside 0: the step is made, or that on exchanged momenta.
inline constexpr uint32_t kStep = 1, kFrozenStep = 2;

/// The fault_item of what happened to another rank's slices.
inline constexpr uint32_t kElsewhere = 0xFFFFFFFF;

/// What kernels and the host tell each other; zero at first.
struct OptimizerWords {
  uint64_t skipped;      ///< steps left out
  double learning_rate;  ///< of the step at hand
  double fault_value;    ///< of kLearningRate, kLossScale and kScaled,
  double fault_wanted;   ///< and what it should be, of kScaled
  float factor;          ///< what the step multiplies gradients by
  StepFault fault;
  uint32_t fault_item;  ///< the first parameter it is about
  uint32_t going;       ///< whether the step at hand changes anything, and how
  uint32_t bad_block;   ///< ~ the first block with a gradient that is not finite; 0: none
  uint32_t elsewhere;   ///< whether another rank's slices keep this step from being made
  uint32_t arrived;     ///< of is_last_block()
  // Of 1-bit optimizers.
  uint32_t prepared;      ///< momenta are in the gradients' memory,
  uint32_t freezing;      ///< this step is the last before v stays
  double prepared_scale;  ///< made of gradients times this
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

/// Of 1-bit optimizers, in GPU memory and per item but for `ratios`, which are per block.
struct OneBitTables {
  OneBitRule rule;
  OneBitLayer* layers;
  OneBitCounts* averages;
  FrozenFactors* factors;
  float* next_factors;
  uint32_t* ratios;
};

/// Enqueues writing this rank's momenta to the gradients, where all have made freeze_step steps.
/// Where the loss scale is none they are NaN, so that no rank makes a step of them.
void prepare_onebit(const StepTables& tables, const StepRequest& request,
                    const OneBitTables& onebit, Stream& stream);
/// As step(), of either kind.
void step_onebit(const StepTables& tables, const StepRequest& request, const OneBitTables& onebit,
                 Stream& stream);

/// Enqueues taking values as they are for their masters.
void take_values(const StepTables& tables, Stream& stream);

/// Of local steps, whose anchor is the first state: enqueues taking values for anchors, and writing
/// anchor - value to the gradients.
void take_anchors(const StepTables& tables, Stream& stream);
void write_moves(const StepTables& tables, Stream& stream);

}  // namespace gradwire::cuda
