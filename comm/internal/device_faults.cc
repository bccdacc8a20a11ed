#include "gradwire/comm/internal/device_faults.h"

namespace gradwire {
namespace {

void throw_if_transport_failed(BucketPipeline& pipeline) {
  try {
    pipeline.transport().throw_if_failed();
  } catch (const TransportError& error) {
    pipeline.failure().set(error, [](const char*) {});
    pipeline.failure().report();
  }
}

// Payloads that do not decode end the group, as they do on the CPU; values that are not finite do not.
void throw_faults_of(const cuda::StepWords& words, const Epoch& epoch, BucketPipeline& pipeline,
                     std::string_view advice) {
  const int rank = pipeline.transport().rank();
  try {
    DeviceState::check(words);
  } catch (const InvalidArgument& error) {
    if ((words.status & cuda::kStatusMalformed) == 0) {
      const std::string_view bucket = words.overflowed == 0
                                          ? std::string_view{}
                                          : epoch.buckets[words.overflowed - 1].label();
      throw NonFiniteGradient(concat("rank ", rank, ": ", bucket, bucket.empty() ? "" : ": ",
                                     error.what(), advice));
    }
    pipeline.fail(concat("rank ", rank, ", behind step ", words.step, ": ", error.what(),
                         " (parts are numbered by the ranks that sent them)"),
                  -1);
    pipeline.failure().report();
  }
}

}  // namespace

void throw_known_faults(Epoch& epoch, BucketPipeline& pipeline) {
  throw_if_transport_failed(pipeline);
  if (const auto words = pipeline.gpu()->newest()) {
    if (!cuda::is_capturing(*epoch.stream)) {
      for (Bucket& bucket : epoch.buckets) {
        bucket.memory().forget_waiting(words->step);
      }
    }
    throw_faults_of(*words, epoch, pipeline,
                    "; nothing has been committed since, and no mean came: call synchronize() "
                    "after the same step on every rank to go on");
  }
}

void throw_faults(Epoch& epoch, BucketPipeline& pipeline) {
  const cuda::StepWords words = epoch.words();
  throw_if_transport_failed(pipeline);
  if (words.status == cuda::kStatusNonFinite) {
    pipeline.gpu()->forget_faults();
  }
  throw_faults_of(words, epoch, pipeline, "");
}

}  // namespace gradwire
