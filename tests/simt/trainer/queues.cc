// Kernels run when the stream comes to them, in all tests of this program.

#include <gtest/gtest.h>

#include "tests/comm/fake_gpu.h"
#include "tests/simt/queue.h"

namespace gradwire::test {
namespace {

class Queues : public ::testing::Environment {
 public:
  void SetUp() override {
    simt::set_queue([](void* stream, std::function<void()> work) {
      static_cast<FakeGpuStream*>(stream)->launch(std::move(work));
    });
  }
};

[[maybe_unused]] const ::testing::Environment* const queues =
    ::testing::AddGlobalTestEnvironment(new Queues);

}  // namespace
}  // namespace gradwire::test
