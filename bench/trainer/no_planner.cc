// auto_pipeline.cc's part in a build without the planner.

#include "bench/trainer/pipeline.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {

std::unique_ptr<Pipeline> make_auto_pipeline(const Options& options,
                                             std::vector<gradwire::ParamInfo>,
                                             gradwire::Transport&) {
  throw gradwire::InvalidArgument(
      gradwire::concat("--method ", options.automatic->text,
                       ": this build has no planner (GRADWIRE_PLANNER=OFF), expected a compressor "
                       "by name"));
}

}  // namespace trainer
