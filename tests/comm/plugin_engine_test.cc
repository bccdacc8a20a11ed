// What the host's side of a plug-in makes of the outcomes of its calls.

#include "gradwire/comm/internal/plugin_engine.h"

#include <gtest/gtest.h>

#include "gradwire/comm/point_to_point.h"

namespace gradwire {
namespace {

/// Every message's peer stays silent.
const gradwire_plugin_table kSilent = {
    .abi_version = GRADWIRE_PLUGIN_ABI_VERSION,
    .table_bytes = sizeof(gradwire_plugin_table),
    .transport = "silent",
    .open = [](const gradwire_plugin_options*, gradwire_plugin_engine**,
               gradwire_plugin_error*) -> int { return GRADWIRE_PLUGIN_DONE; },
    .post_send = nullptr,
    .post_recv = [](gradwire_plugin_engine*, int, uint64_t, void*, size_t, uint64_t* message,
                    gradwire_plugin_error*) -> int {
      *message = 0;
      return GRADWIRE_PLUGIN_DONE;
    },
    .wait = [](gradwire_plugin_engine*, uint64_t, int64_t, gradwire_plugin_error*) -> int {
      return GRADWIRE_PLUGIN_TIMED_OUT;
    },
    .leave = [](gradwire_plugin_engine*) {},
    .close = [](gradwire_plugin_engine*, const char*) {},
    .destroy = [](gradwire_plugin_engine*) {},
};

// Two calls of two groups wait at the same time. A peer that only lost its connection is asked why,
// and would name the connection that this rank has closed.
TEST(PluginEngine, CallsAllThatMeetASilentPeerSilent) {
  TransportOptions options;
  options.rank = 0;
  options.world_size = 2;
  const auto engine = make_plugin_engine(kSilent, options, {});
  for (int call = 0; call < 2; ++call) {
    std::byte bytes[4];
    const MessageHandle message = engine->post_recv(1, 0, bytes);
    try {
      engine->wait(message, std::chrono::steady_clock::now());
      FAIL() << "nothing was thrown";
    } catch (const SilentPeer& error) {
      EXPECT_STREQ(error.what(), "rank 1 stayed silent past the deadline");
      EXPECT_EQ(error.peer(), 1);
    }
  }
}

}  // namespace
}  // namespace gradwire
