// Who does not belong to the job: another secret, garbage, silence, half a message.

#include <algorithm>
#include <mutex>

#include "gradwire/comm/internal/handshake.h"
#include "gradwire/comm/internal/server.h"
#include "gradwire/comm/store.h"
#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {
namespace {

using std::chrono::milliseconds;

/// What a server or a store has logged.
class Log {
 public:
  std::function<void(std::string_view)> sink() {
    return [this](std::string_view line) {
      std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    };
  }
  /// Waits for a line with this in it, at most five seconds.
  bool says(const std::string& part) {
    for (int i = 0; i < 5000; ++i) {
      {
        std::lock_guard lock(mutex_);
        for (const std::string& line : lines_) {
          if (line.find(part) != std::string::npos) {
            return true;
          }
        }
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::lock_guard lock(mutex_);
    for (const std::string& line : lines_) {
      ADD_FAILURE() << "said: " << line;
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

/// A connection to a port of this machine that speaks no protocol.
class Stranger {
 public:
  explicit Stranger(int port) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    EXPECT_EQ(connect_once("127.0.0.1", std::to_string(port), deadline, socket_), 0);
  }
  void say(const std::string& bytes) {
    EXPECT_EQ(send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  /// True when the other end has hung up, within five seconds.
  bool is_hung_up_on() {
    try {
      char byte = 0;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      for (;;) {
        read_all(socket_, {&byte, 1}, deadline);
      }
    } catch (const TransportError& error) {
      return std::string(error.what()) != "no answer within the timeout";
    }
  }

 private:
  Socket socket_;
};

/// A server that answers "echo <request>".
class Echo {
 public:
  explicit Echo(milliseconds patience = milliseconds(2000))
      : Echo(listen_on("127.0.0.1", "0"), patience) {}
  int port() const { return port_; }
  Log& log() { return log_; }
  std::string ask(const std::string& secret, const std::string& request) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    Socket socket;
    EXPECT_EQ(connect_once("127.0.0.1", std::to_string(port_), deadline, socket), 0);
    ProvenSocket proven(std::move(socket), secret, deadline);
    proven.write(request, deadline);
    return proven.read(deadline);
  }

 private:
  Echo(Socket listener, milliseconds patience)
      : port_(local_port_of(listener)),
        server_(std::move(listener), {"echo", "open sesame", 1, log_.sink(), patience},
                {.request = [this](Server::Client client, const std::string& request) {
                  server_.send(client, "echo " + request);
                }}) {}

  int port_;
  Log log_;
  Server server_;
};

TEST(Strangers, WhoKnowsTheSecretIsServed) {
  const Echo echo;
  EXPECT_EQ(echo.ask("open sesame", "hello"), "echo hello");
  EXPECT_EQ(echo.ask("open sesame", std::string(1 << 20, 'x')).size(), (1u << 20) + 5);
}

TEST(Strangers, AnotherSecretIsRefusedOnBothSides) {
  Echo echo;
  EXPECT_THROW(echo.ask("open barley", "hello"), WrongPeer);
  EXPECT_TRUE(echo.log().says("echo: refused 127.0.0.1:"));
  EXPECT_TRUE(echo.log().says("it has another job secret"));
}

TEST(Strangers, GarbageIsRefusedByItsFirstBytes) {
  Echo echo;
  Stranger stranger(echo.port());
  stranger.say("GE");
  EXPECT_TRUE(stranger.is_hung_up_on());
  EXPECT_TRUE(echo.log().says("it speaks another protocol"));
  EXPECT_EQ(echo.ask("open sesame", "hello"), "echo hello");
}

TEST(Strangers, SilenceAndHalfAMessageEndWithPatience) {
  Echo echo(milliseconds(100));
  Stranger silent(echo.port()), half(echo.port());
  half.say("GWP1and then nothing");
  EXPECT_TRUE(silent.is_hung_up_on());
  EXPECT_TRUE(half.is_hung_up_on());
  EXPECT_TRUE(echo.log().says("it did not prove itself within 100 ms"));
  {
    Stranger hasty(echo.port());
    hasty.say("GWP1");
  }
  EXPECT_TRUE(echo.log().says("it hung up before it had proven itself"));
  EXPECT_EQ(echo.ask("open sesame", "hello"), "echo hello");
}

TEST(Strangers, ATooLongFrameIsRefused) {
  Echo echo;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  Socket socket;
  ASSERT_EQ(connect_once("127.0.0.1", std::to_string(echo.port()), deadline, socket), 0);
  ProvenSocket proven(std::move(socket), "open sesame", deadline);
  EXPECT_THROW(proven.write(std::string(kMaxFrameBytes + 1, 'x'), deadline), InvalidArgument);
  // Nobody who has not the key can make the head of one; without a key this one is right.
  FrameSeal seal;
  const uint32_t length = kMaxFrameBytes + 1;
  std::string head(reinterpret_cast<const char*>(&length), sizeof(length));
  const Digest digest = sha256(std::string("\0length\0\0\0\0\0\0\0\0", 15) + head);
  head.append(reinterpret_cast<const char*>(digest.data()), FrameSeal::kHeadBytes - head.size());
  EXPECT_THROW(seal.length_of(head), BadFrame);
  write_all(proven.socket(), head, deadline);
  EXPECT_THROW(proven.read(deadline), TransportError);
  EXPECT_TRUE(echo.log().says("the head of a frame changed on the way"));
}

TEST(Strangers, AreBoundedInNumberAndLeaveNothingBehind) {
  const size_t before = open_descriptors();
  {
    Echo echo;
    std::vector<std::unique_ptr<Stranger>> crowd;
    for (int i = 0; i < 100; ++i) {
      crowd.push_back(std::make_unique<Stranger>(echo.port()));
    }
    EXPECT_TRUE(crowd[0]->is_hung_up_on()) << "the oldest goes first";
    EXPECT_TRUE(crowd[60]->is_hung_up_on());
    EXPECT_TRUE(echo.log().says("32 connections wait that have not proven themselves"));
    EXPECT_EQ(echo.ask("open sesame", "hello"), "echo hello") << "past the crowd";
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Strangers, AStoreTellsBothSidesOfAnotherSecret) {
  const std::string place = "tcp:127.0.0.1:" + std::to_string(TakenPort().port());
  Log log;
  const auto store = make_store(place, 0, milliseconds(5000), {"one", log.sink(), 2});
  try {
    make_store(place, 1, milliseconds(5000), {"two", {}, 2});
    FAIL();
  } catch (const TransportError& error) {
    EXPECT_EQ(std::string(error.what()), "store " + place +
                                             ": rank 0 is not reached there: it has another job "
                                             "secret");
  }
  EXPECT_TRUE(log.says("store " + place + ": refused 127.0.0.1:"));
}

TEST(Strangers, JobsWithDifferentSecretsShareAFolderWithoutMeeting) {
  const TemporaryFolder folder;
  const std::string place = "file:" + folder.path();
  Log log;
  const auto one = make_store(place, 0, milliseconds(200), {"one", {}, 2});
  one->set("here/0", {});
  const auto two = make_store(place, 0, milliseconds(200), {"two", log.sink(), 2});
  EXPECT_TRUE(log.says("passed over 1 keys of a job with another secret"));
  std::vector<char> value;
  EXPECT_FALSE(two->try_get("here/0", value));
  two->set("here/0", {});  // no clash
  two->clear();
  EXPECT_TRUE(one->try_get("here/0", value)) << "one job does not clear another's keys";
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().string().find("one"), std::string::npos) << "the secret is in a name";
  }
}

TEST(Strangers, WorldSizesThatDisagreeAreOneErrorThatNamesBoth) {
  for (const bool over_tcp : {false, true}) {
    const TemporaryFolder folder;
    const std::string place = over_tcp
                                  ? "tcp:127.0.0.1:" + std::to_string(TakenPort().port())
                                  : "file:" + folder.path();
    const auto errors = run_threads(3, [&](int rank) {
      const auto store = make_store(place, rank, milliseconds(10000));
      meet(*store, "here", rank, rank == 2 ? 4 : 3);
    });
    const std::string head = "store " + place + ": ranks disagree on the world size: rank ";
    EXPECT_EQ(errors[0], head + "0 has 3, rank 2 has 4");
    EXPECT_EQ(errors[1], head + "1 has 3, rank 2 has 4");
    EXPECT_EQ(errors[2].find(head + "2 has 4, rank "), 0u) << errors[2];
  }
}

}  // namespace
}  // namespace gradwire::transport_test
