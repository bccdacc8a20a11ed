#include "bench/trainer/step_timeline.h"

#include <array>
#include <string>
#include <utility>

#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

int64_t microseconds(StepMoments::Time from, StepMoments::Time to) {
  return std::chrono::duration_cast<std::chrono::microseconds>(to - from).count();
}

std::string caller(const StepMoments& at) {
  const std::array<std::pair<const char*, StepMoments::Time>, 6> ends{{{"forward", at.forward},
                                                                       {"backward", at.backward},
                                                                       {"prepare", at.prepared},
                                                                       {"wait", at.exchanged},
                                                                       {"update", at.updated},
                                                                       {"outer step", at.end}}};
  std::string list = "[";
  int64_t begin = 0;
  for (const auto& [name, time] : ends) {
    const int64_t end = microseconds(at.begin, time);
    if (end > begin + 1) {  // less is a look at the clock: nothing to prepare, no outer step
      list += gradwire::concat(list.size() == 1 ? "" : ", ", "[\"", name, "\", ", begin, ", ", end,
                               "]");
    }
    begin = end;
  }
  return list + "]";
}

std::string buckets(const gradwire::StepTrace& trace, int64_t shift_us) {
  std::string list = "[";
  for (const gradwire::BucketTrace& b : trace.buckets) {
    list += gradwire::concat(list.size() == 1 ? "[" : ", [", b.begin_us + shift_us, ", ",
                             b.compressed_us + shift_us, ", ", b.exchange_us + shift_us, ", ",
                             b.end_us + shift_us, ", ", b.codec_us, ", ", b.stream, "]");
  }
  return list + "]";
}

}  // namespace

JsonLine timeline(uint64_t step, const StepMoments& at, const gradwire::StepTrace* trace) {
  JsonLine line("timeline");
  line.add("step", step).add_json("caller_us", caller(at));
  return line.add_json(
      "buckets_us", trace == nullptr
                        ? "[]"
                        : buckets(*trace, microseconds(at.begin, at.waited) - trace->wait_end_us));
}

}  // namespace trainer
