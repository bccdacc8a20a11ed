#pragma once
// NCCL transports of threads, over the stand-ins for the library and the GPUs.

#include "gradwire/comm/transport/nccl.h"
#include "tests/comm/fake_gpu.h"
#include "tests/comm/fake_nccl.h"
#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {

using test::fake_nccl;
using test::FakeGpuStream;
using test::make_fake_nccl;

/// Device memory of n elements.
template <class T>
struct OnGpu {
  explicit OnGpu(size_t n, int device = 0) : buffer(n * sizeof(T), {DeviceType::kCuda, device}) {}
  std::span<T> span() const { return buffer.as<T>(); }
  std::span<std::byte> bytes() const { return buffer.bytes(); }
  Buffer buffer;
};

/// What one rank of an NCCL group gets.
struct NcclRank {
  std::unique_ptr<Transport>& transport;
  Context& context;
  int rank;
  int size;

  FakeGpuStream& stream() const { return static_cast<FakeGpuStream&>(context.stream); }
  /// Waits for the stream, then throws what failed.
  void wait() const {
    context.stream.wait();
    transport->throw_if_failed();
  }
  void barrier(std::string_view what = "") const {
    transport->barrier({0, what}, context);
    wait();
  }
};

struct NcclGroup {
  std::chrono::milliseconds timeout{20000};
  NcclOptions options{};
  const NcclLibrary* library = nullptr;
};

/// Runs `body` on every rank of a new group, rank r on GPU r, and says what each threw.
inline std::vector<std::string> run_nccl_ranks(int size, const NcclGroup& group,
                                               const std::function<void(NcclRank)>& body) {
  static const NcclLibrary whole = make_fake_nccl();
  const TemporaryFolder folder;
  return run_threads(size, [&](int r) {
    TransportOptions options;
    options.rank = r;
    options.world_size = size;
    options.store = "file:" + folder.path();
    options.timeout = group.timeout;
    options.nccl = group.options;
    options.nccl.device_index = r;
    auto transport =
        make_nccl_transport(group.library == nullptr ? whole : *group.library, options);
    FakeGpuStream stream(r);
    Workspace workspace(stream.device());
    Context context{stream, workspace};
    body({transport, context, r, size});
  });
}

}  // namespace gradwire::transport_test
