#pragma once
// What groups that commit together share: which of two buffers is committed, how many commits there
// were, and the faults since then. On a GPU it lives in device memory, so that a step, its commit
// included, can be captured in a CUDA graph and replayed. On the CPU the host alone reads it.

#include <string_view>

#include "gradwire/kernels/compress/on_non_finite.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/ops/device_status.h"

namespace gradwire {

class DeviceState {
 public:
  /// @throws DeviceError where there is no such GPU or no CUDA in this build.
  explicit DeviceState(Device device);

  Device device() const { return words_.device(); }
  /// In device memory; kernels read and write it.
  cuda::StepWords* words() const;
  /// Between steps: what steps so far have left, instead of nothing. On a GPU it waits.
  void set_words(const cuda::StepWords& words, Stream* stream);
  /// Which buffers are committed, between steps. On a GPU it waits for the stream.
  size_t parity(Stream* stream) const;

  /// Enqueues the commit of a step: the residuals written last become the committed ones, the step
  /// counts on. After a fault, or non-finite values, nothing changes: with kError until clear(),
  /// with kSkip in this step alone. This and what is enqueued below are for a GPU.
  void commit(OnNonFinite policy, Stream& stream);
  /// Enqueues forgetting all faults: the committed state stands.
  void clear(Stream& stream);
  /// Enqueues setting the committed step; for checkpoints. Thresholds are forgotten, the parity
  /// stays: in a new state it is 0, and the residual passed first is the committed one.
  void set_step(uint32_t step, Stream& stream);

  /// Waits for the stream and returns the words: where `parity` is 0 the residual passed first (e) is
  /// the committed one, else the second (e_next). A checkpoint keeps that one and `step`. Never in a step: it stops the pipeline.
  cuda::StepWords read(Stream& stream) const;
  /// Waits for the stream. @throws InvalidArgument naming the part and what is wrong with it, or
  /// the non-finite values; the state stays as it is until clear().
  void check(Stream& stream) const;
  /// The same of words that have been read.
  static void check(const cuda::StepWords& words);

 private:
  Buffer words_;
};

}  // namespace gradwire
