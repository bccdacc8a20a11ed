// A bit that changes on the way, anywhere in what one rank sends to another: what the ranks see.
// All 300 places in a soak.

#include <random>
#include <set>

#include "bench/flipping_wire.h"
#include "gradwire/comm/internal/plugin_engine.h"
#include "gradwire/comm/transport/point_to_point_transport.h"
#include "tests/comm/transport_processes.h"
#include "tests/support/sampling.h"

namespace gradwire::transport_test {
namespace {

constexpr int kSize = 3;

/// "header:MESSAGE:BYTE" or "payload:MESSAGE:BYTE", as bytes are counted there.
std::vector<std::string> all_places() {
  std::mt19937 draw(7);
  std::set<std::string> places;
  while (places.size() < 300) {
    const bool header = places.size() % 3 == 0;
    places.insert(concat(header ? "header:" : "payload:", draw() % 16, ":",
                         header ? draw() % 48 : 48 + draw() % 40000));
  }
  return {places.begin(), places.end()};
}

class FlippedBits : public GlooProcesses {
 protected:
  /// Rank r's part of a few sums that all know.
  void add_up(int rank, const std::string& place, const TransportOptions& options,
              const std::function<void(const std::string&)>& say) {
    const gradwire_plugin_table* gloo = &load_plugin("gloo", PluginSymbols::kOwn, options);
    if (rank == 0) {
      const size_t first = place.find(':') + 1, second = place.find(':', first) + 1;
      gloo = &faults::FlippingWire::over(*gloo, {.from = 1,
                                                 .message = std::stoi(place.substr(first)),
                                                 .byte = std::stoul(place.substr(second)),
                                                 .say = {}});
    }
    const auto store = make_store(options.store, rank, options.timeout);
    auto engine = make_plugin_engine(*gloo, options, {store.get(), "127.0.0.1", store->deadline()});
    meet(*store, "joined", rank, kSize);
    const auto transport = make_point_to_point_transport("gloo", std::move(engine), options);
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    for (int step = 0; step < 4; ++step) {
      std::vector<float> values(30000, static_cast<float>(rank + step));
      const AllReduce algorithm = step % 2 == 0 ? AllReduce::kRankOrder : AllReduce::kRing;
      transport->all_reduce_sum(values, {1, "bucket 0", algorithm}, context);
      stream->wait();
      if (values != std::vector<float>(values.size(), static_cast<float>(3 + 3 * step))) {
        say("WRONG");
      }
    }
  }
};

TEST_F(FlippedBits, EndNoProcessButInGloosOwnHeader) {
  int seen = 0;
  for (const std::string& place : gradwire::testing::sample_of_each(all_places(), 4)) {
    SCOPED_TRACE(place);
    const TemporaryFolder folder;
    Processes ranks(kSize, [&](int rank, const auto& say) {
      auto options = options_of(rank, kSize, milliseconds(1500));
      options.store = "file:" + folder.path();
      add_up(rank, place, options, say);
    });
    for (int r = 0; r < kSize; ++r) {
      const std::string line = ranks.line_of(r);
      seen += line != "fine";
      if (r > 0 || place.starts_with("payload")) {
        EXPECT_TRUE(line == "fine" || line.find("rank ") != std::string::npos)
            << "rank " << r << (line.empty() ? " has ended" : " says ") << line;
      } else {
        EXPECT_NE(line, "WRONG");
      }
    }
  }
  EXPECT_GT(seen, 0) << "no rank has seen a flipped bit";
}

}  // namespace
}  // namespace gradwire::transport_test
