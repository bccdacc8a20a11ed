#pragma once
// Ranks whose GPUs are queues of emulated kernels and whose NCCL is a stand-in.

#include <future>

#include "tests/comm/device_reducer_case.h"
#include "tests/comm/nccl_ranks.h"
#include "tests/simt/queue.h"

namespace gradwire::test {

using transport_test::NcclRank;

/// Kernels run when their stream comes to them.
class DeviceReducers : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_nccl().reset();
    simt::set_queue([](void* stream, std::function<void()> work) {
      static_cast<FakeGpuStream*>(stream)->launch(std::move(work));
    });
  }
  void TearDown() override {
    EXPECT_EQ(fake_nccl().alive, 0) << "communicators are left";
    EXPECT_EQ(fake_nccl().misuses, 0);
    simt::set_queue(nullptr);
  }
};

inline void on_every_gpu(int world_size, const std::function<void(NcclRank)>& body) {
  transport_test::expect_all_fine(transport_test::run_nccl_ranks(world_size, {}, body));
}

/// A kernel that runs until the test lets it end: what is behind it waits.
class Gate {
 public:
  explicit Gate(FakeGpuStream& stream) {
    stream.launch([open = open_] { open->get_future().wait(); });
  }
  ~Gate() { release(); }
  void release() {
    if (!std::exchange(released_, true)) {
      open_->set_value();
    }
  }

 private:
  std::shared_ptr<std::promise<void>> open_ = std::make_shared<std::promise<void>>();
  bool released_ = false;
};

}  // namespace gradwire::test
