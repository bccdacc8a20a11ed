// The transport "nccl" of the Python module on the emulated GPU: its ranks are threads that share
// that GPU. The store's name is the group's.

#include <map>

#include "gradwire/comm/transport/nccl.h"
#include "tests/simt/reducer/one_gpu_group.h"

namespace gradwire {
namespace {

std::shared_ptr<test::OneGpuGroup> group_at(const TransportOptions& options) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<test::OneGpuGroup>> groups;
  std::lock_guard lock(mutex);
  std::weak_ptr<test::OneGpuGroup>& known = groups[options.store];
  std::shared_ptr<test::OneGpuGroup> group = known.lock();
  if (group == nullptr) {
    group = std::make_shared<test::OneGpuGroup>(options.world_size);
    known = group;
  }
  return group;
}

}  // namespace

std::string nccl_unavailable_reason(const TransportOptions&) { return {}; }

std::unique_ptr<Transport> make_nccl_transport(const TransportOptions& options) {
  const auto group = group_at(options);
  group->meet();
  return std::make_unique<test::OneGpuTransport>(group, options.rank,
                                                 options.pacing.bits_per_second);
}

}  // namespace gradwire
