// The connections under a group, and who else calls while they are made.

#include <mutex>

#include "gradwire/comm/internal/handshake.h"
#include "gradwire/comm/internal/mesh.h"
#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {
namespace {

using std::chrono::milliseconds;

/// A group that meets in a folder.
class Mesh : public testing::Test {
 protected:
  std::unique_ptr<Store> store(milliseconds timeout = milliseconds(20000)) const {
    return make_store("file:" + folder_.path(), 0, timeout, {"open sesame", {}, 4});
  }
  TransportOptions options_of(int rank, int size) {
    TransportOptions options;
    options.rank = rank;
    options.world_size = size;
    options.job_secret = "open sesame";
    options.log = [this](std::string_view line) {
      std::lock_guard lock(mutex_);
      log_ += concat(line, "\n");
    };
    return options;
  }
  std::vector<Socket> connect(int rank, int size, milliseconds timeout = milliseconds(20000)) {
    return connect_mesh(*store(timeout), "mesh", "127.0.0.1", options_of(rank, size));
  }
  std::string log() {
    std::lock_guard lock(mutex_);
    return log_;
  }

  /// Where a rank listens; `secret` is that of its port.
  int port_of(int rank, std::string* secret = nullptr) const {
    const std::vector<char> value = store()->get(concat("mesh/", rank));
    const std::string text(value.begin(), value.end());
    if (secret != nullptr) {
      *secret = text.substr(0, sizeof(Nonce));
    }
    return std::stoi(text.substr(text.rfind(':') + 1));
  }
  static Socket call(int port) {
    Socket socket;
    EXPECT_EQ(connect_once("127.0.0.1", std::to_string(port), soon(), socket), 0);
    return socket;
  }
  static Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

  /// Ranks know each other by their sockets: each sends its number through all of them.
  static void expect_peers(const std::vector<Socket>& sockets, int rank) {
    for (size_t peer = 0; peer < sockets.size(); ++peer) {
      if (static_cast<int>(peer) != rank) {
        const auto own = static_cast<char>(rank);
        write_all(sockets[peer], {&own, 1}, soon());
      }
    }
    for (size_t peer = 0; peer < sockets.size(); ++peer) {
      if (static_cast<int>(peer) != rank) {
        char heard = -1;
        read_all(sockets[peer], {&heard, 1}, soon());
        check(heard == static_cast<char>(peer), "rank ", int{heard}, " in the place of ", peer);
      }
    }
  }

  TemporaryFolder folder_;

 private:
  std::mutex mutex_;
  std::string log_;
};

TEST_F(Mesh, JoinsEveryTwoRanks) {
  for (const std::string& error :
       run_threads(5, [&](int rank) { expect_peers(connect(rank, 5), rank); })) {
    EXPECT_EQ(error, "");
  }
}

TEST_F(Mesh, FormsAlthoughStrangersCall) {
  std::string error = "not run", secret;
  std::thread first(
      [&] { error = run_threads(1, [&](int) { expect_peers(connect(0, 2), 0); })[0]; });
  const int port = port_of(0, &secret);
  std::vector<Socket> strangers;
  for (const std::string_view words : {"", "GET / HTTP/1.1\r\n\r\n", "GWP1 and then nothing"}) {
    strangers.push_back(call(port));
    write_all(strangers.back(), words, soon());
  }
  strangers.push_back(call(port));
  write_all(strangers.back(), std::string(10000, '\0'), soon());
  call(port);  // and hangs up
  for (const std::string& other : {std::string(), std::string("open sesame"), secret}) {
    EXPECT_THROW(prove(call(port), other, soon()), WrongPeer);
  }
  for (const uint32_t rank : {0u, 2u, 4000000000u}) {  // of this group, and mistaken
    const Socket socket = call(port);
    prove(socket, "open sesame" + secret, soon());
    write_all(socket, {reinterpret_cast<const char*>(&rank), sizeof(rank)}, soon());
    char byte = 0;
    EXPECT_THROW(read_all(socket, {&byte, 1}, soon()), TransportError);
  }
  expect_peers(connect(1, 2), 1);
  first.join();
  EXPECT_EQ(error, "");
  for (const char* const why : {"it speaks another protocol", "it has another job secret",
                                "it says that it is rank 2, expected one of rank 1"}) {
    EXPECT_NE(log().find(why), std::string::npos) << why << " is not in\n" << log();
  }
}

TEST_F(Mesh, NamesTheRanksThatDoNotCall) {
  const auto errors = run_threads(1, [&](int) { connect(0, 3, milliseconds(300)); });
  EXPECT_NE(errors[0].find("no sign of rank 1, 2 at 127.0.0.1:"), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find(" within 0.3 s (the timeout: "), std::string::npos) << errors[0];
}

TEST_F(Mesh, NamesTheRankThatNoLongerListens) {
  std::string place(sizeof(Nonce), 'x');
  place += concat("127.0.0.1:", local_port_of(listen_on("127.0.0.1", "0")));  // closed at once
  store()->set("mesh/0", place);
  const auto errors = run_threads(1, [&](int) { connect(1, 2); });
  EXPECT_NE(errors[0].find("rank 0 is not reached at 127.0.0.1:"), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("Connection refused"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace gradwire::transport_test
