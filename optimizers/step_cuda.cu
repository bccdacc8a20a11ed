#include "gradwire/optimizers/step_freeze.cuh"
#include "gradwire/optimizers/step_outer.cuh"

namespace gradwire::cuda {
namespace {

/// Whether gradients that no norm is taken of are looked at for what is not finite.
bool looks_at_all(const StepRequest& r) {
  const bool known = r.options.known_finite || r.rule.max_grad_norm != 0.0;
  return !known || r.rule.form == StepForm::kLars;
}

/// The first pass, which looks at gradients and changes nothing.
template <bool kReads>
void measure(const StepTables& t, const StepRequest& r, Stream& stream) {
  const LaunchShape shape{t.block_count, kStepThreads, stream};
  const bool alone = looks_at_all(r);
  if (r.rule.form == StepForm::kAdam && r.rule.layerwise) {
    if (r.rule.has_codes) {
      GRADWIRE_LAUNCH((measure_kernel<Change::kUpdate, kReads, true>), shape, t, true, alone);
    } else {
      GRADWIRE_LAUNCH((measure_kernel<Change::kUpdate, kReads>), shape, t, true, alone);
    }
  } else if (r.rule.decayed_norm) {
    GRADWIRE_LAUNCH((measure_kernel<Change::kDecayed, kReads>), shape, t, r.rule.layerwise, alone);
  } else {
    GRADWIRE_LAUNCH((measure_kernel<Change::kGradient, kReads>), shape, t, r.rule.layerwise, alone);
  }
}

/// The last pass, over parameters whose state is codes of 8 bits or over the others.
template <bool kCodes, bool kReads>
void update(const StepTables& t, const StepRule& rule, const LaunchShape& blocks) {
  if (rule.outer) {
    GRADWIRE_LAUNCH((outer_kernel<kReads>), blocks, t, rule);
  } else if (rule.form == StepForm::kAdam) {
    GRADWIRE_LAUNCH((adam_kernel<kCodes, kReads>), blocks, t);
  } else {
    GRADWIRE_LAUNCH((momentum_kernel<kCodes, kReads>), blocks, t, rule);
  }
}

/// The first `count` of the slices' sums become those of all ranks'.
void add_up(const StepTables& t, const StepRequest& r, size_t count, Stream& stream) {
  try {
    (*r.options.on_device.add_up)({t.slice_sums, count}, stream);
  } catch (...) {
    GRADWIRE_LAUNCH(forget_step_kernel, (LaunchShape{1, 1, stream}), t.words);
    throw;
  }
}

template <bool kReads>
void enqueue_step(const StepTables& t, const StepRequest& r, Stream& stream) {
  const LaunchShape blocks{t.block_count, kStepThreads, stream};
  const LaunchShape items{(t.item_count + kItemsOfBlock - 1) / kItemsOfBlock, kStepThreads, stream};
  const LaunchShape one{1, kBeginThreads, stream};
  const bool slices = r.options.on_device.add_up != nullptr;
  if (r.rule.max_grad_norm != 0.0) {
    GRADWIRE_LAUNCH((measure_kernel<Change::kClip, kReads>), blocks, t, false, false);
    if (slices) {
      GRADWIRE_LAUNCH(sum_of_slices_kernel, one, t);
      add_up(t, r, 1, stream);
    }
  }
  GRADWIRE_LAUNCH(begin_step_kernel, one, t, r);
  const bool measures = r.rule.layerwise || looks_at_all(r);
  if (measures) {
    measure<kReads>(t, r, stream);
  }
  if (measures && slices) {
    GRADWIRE_LAUNCH(squares_of_slices_kernel, items, t, r.rule.layerwise);
    add_up(t, r, 2 * t.item_count + 1, stream);
  }
  GRADWIRE_LAUNCH(decide_kernel, items, t, r.rule, r.options.on_non_finite == OnNonFinite::kSkip,
                  measures && slices);
  update<false, kReads>(t, r.rule, blocks);
  if (r.rule.has_codes) {
    update<true, kReads>(t, r.rule, blocks);
  }
}

/// A step of either kind, and what the freeze takes.
template <bool kReads>
void enqueue_onebit(const StepTables& t, const StepRequest& r, const OneBitTables& o,
                    Stream& stream) {
  const LaunchShape blocks{t.block_count, kStepThreads, stream};
  const LaunchShape items{(t.item_count + kItemsOfBlock - 1) / kItemsOfBlock, kStepThreads, stream};
  const bool layerwise = r.rule.layerwise, alone = !r.options.known_finite;
  if (r.rule.max_grad_norm != 0.0) {
    GRADWIRE_LAUNCH((measure_kernel<Change::kClip, kReads>), blocks, t, false, false);
  }
  GRADWIRE_LAUNCH(begin_onebit_kernel, (LaunchShape{1, kBeginThreads, stream}), t, r, o);
  if (layerwise || looks_at_all(r)) {
    measure<kReads>(t, r, stream);
  }
  if (layerwise && r.rule.has_codes) {
    GRADWIRE_LAUNCH((measure_frozen_kernel<true>), blocks, t, o, layerwise, alone);
  } else if (layerwise || alone) {
    GRADWIRE_LAUNCH((measure_frozen_kernel<false>), blocks, t, o, layerwise, alone);
  }
  GRADWIRE_LAUNCH(decide_onebit_kernel, items, t, r.rule, o,
                  r.options.on_non_finite == OnNonFinite::kSkip);
  update<false, kReads>(t, r.rule, blocks);
  GRADWIRE_LAUNCH((frozen_update_kernel<false>), blocks, t, o, layerwise);
  if (r.rule.has_codes) {
    update<true, kReads>(t, r.rule, blocks);
    GRADWIRE_LAUNCH((frozen_update_kernel<true>), blocks, t, o, layerwise);
  }
  if (o.rule.variance_floor != 0.0) {
    GRADWIRE_LAUNCH(sum_variances_kernel, (LaunchShape{t.block_count, kWarp, stream}), t);
  }
  if (layerwise || o.rule.variance_floor != 0.0) {
    GRADWIRE_LAUNCH(freeze_kernel, blocks, t, o, layerwise);
  }
}

}  // namespace

void prepare_onebit(const StepTables& t, const StepRequest& r, const OneBitTables& o,
                    Stream& stream) {
  check_cuda_stream("cuda::prepare_onebit", stream);
  const LaunchShape blocks{t.block_count, kStepThreads, stream};
  if (r.rule.max_grad_norm != 0.0) {
    GRADWIRE_LAUNCH((measure_kernel<Change::kClip, false>), blocks, t, false, false);
  }
  GRADWIRE_LAUNCH(prepare_onebit_kernel, (LaunchShape{1, kBeginThreads, stream}), t, r, o);
  GRADWIRE_LAUNCH(local_momentum_kernel, blocks, t, o);
}

void step_onebit(const StepTables& t, const StepRequest& r, const OneBitTables& o, Stream& stream) {
  check_cuda_stream("cuda::step_onebit", stream);
  if (r.reads) {
    enqueue_onebit<true>(t, r, o, stream);
  } else {
    enqueue_onebit<false>(t, r, o, stream);
  }
}

void step(const StepTables& t, const StepRequest& r, Stream& stream) {
  check_cuda_stream("cuda::step", stream);
  if (r.reads) {
    enqueue_step<true>(t, r, stream);
  } else {
    enqueue_step<false>(t, r, stream);
  }
}

void take_values(const StepTables& t, Stream& stream) {
  check_cuda_stream("cuda::take_values", stream);
  GRADWIRE_LAUNCH(take_values_kernel, (LaunchShape{t.block_count, kStepThreads, stream}), t);
}

void take_anchors(const StepTables& t, Stream& stream) {
  check_cuda_stream("cuda::take_anchors", stream);
  GRADWIRE_LAUNCH(take_anchors_kernel, (LaunchShape{t.block_count, kStepThreads, stream}), t);
}

void write_moves(const StepTables& t, Stream& stream) {
  check_cuda_stream("cuda::write_moves", stream);
  GRADWIRE_LAUNCH(write_moves_kernel, (LaunchShape{t.block_count, kStepThreads, stream}), t);
}

}  // namespace gradwire::cuda
