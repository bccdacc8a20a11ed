// Rendezvous stores, and the options that come from the environment.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "gradwire/comm/store.h"
#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {
namespace {

using std::chrono::milliseconds;

template <class Exception, class F>
std::string message_of(const F& body) {
  try {
    body();
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

std::vector<char> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// What every store must do, by four ranks at once.
void exercise(const std::string& address) {
  const int size = 4;
  expect_all_fine(run_threads(size, [&](int rank) {
    const auto store = make_store(address, rank, milliseconds(20000));
    meet(*store, "start", rank, size);
    std::string value(static_cast<size_t>(rank) * 3000, static_cast<char>('a' + rank));
    value += '\0';
    store->set("value/" + std::to_string(rank), value);
    for (int r = 0; r < size; ++r) {
      const std::vector<char> got = store->get("value/" + std::to_string(r));
      std::string expected(static_cast<size_t>(r) * 3000, static_cast<char>('a' + r));
      expected += '\0';
      EXPECT_EQ(got, bytes_of(expected));
    }
    EXPECT_NE(message_of<TransportError>([&] { store->set("value/0", value); }),
              "nothing was thrown");
    std::vector<char> ignored;
    EXPECT_FALSE(store->try_get("nothing", ignored));
    if (rank == 0) {
      meet(*store, "end", rank, size);
      store->clear();
    } else {
      store->set("end/" + std::to_string(rank), {});
    }
  }));
}

TEST(Stores, AFolderCarriesKeysAndIsFreeForTheNextGroup) {
  const TemporaryFolder folder;
  for (int round = 0; round < 3; ++round) {
    exercise("file:" + folder.path() + "/new/folder");
  }
}

TEST(Stores, ATcpServerCarriesKeysAndIsFreeForTheNextGroup) {
  const std::string address = "tcp:127.0.0.1:" + std::to_string(TakenPort().port());
  for (int round = 0; round < 3; ++round) {
    exercise(address);
  }
}

TEST(Stores, APortInUseIsNamed) {
  const TakenPort taken;
  const std::string place = "127.0.0.1:" + std::to_string(taken.port());
  EXPECT_EQ(message_of<TransportError>([&] { make_store("tcp:" + place, 0, milliseconds(100)); }),
            "rank 0 cannot listen on " + place + ": Address already in use");
}

TEST(Stores, AServerThatIsNotThereIsNamedAtTheDeadline) {
  TakenPort port;
  const std::string place = "127.0.0.1:" + std::to_string(port.release());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(message_of<TransportError>([&] { make_store("tcp:" + place, 1, milliseconds(200)); }),
            "rank 0 does not answer at " + place + ": Connection refused");
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(100)) << "it tries again";
}

TEST(Stores, ASilentServerIsNamedAtTheDeadline) {
  const TakenPort silent;  // accepts connections, answers nothing
  const std::string place = "tcp:127.0.0.1:" + std::to_string(silent.port());
  const auto store = make_store(place, 1, milliseconds(200));
  std::vector<char> value;
  EXPECT_EQ(message_of<TransportError>([&] { store->try_get("x", value); }),
            "store " + place + ": rank 0: no answer within the timeout");
}

TEST(Stores, AnUnknownHostIsNamed) {
  expect_contains(message_of<TransportError>(
                      [] { make_store("tcp:no-such-host.invalid:29500", 1, milliseconds(200)); }),
                  "no-such-host.invalid:29500: ");
}

TEST(Stores, AServerSurvivesStrangers) {
  const std::string place = "127.0.0.1:" + std::to_string(TakenPort().port());
  const auto server = make_store("tcp:" + place, 0, milliseconds(20000));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(place.substr(10))));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ASSERT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  char byte = 0;
  EXPECT_LE(recv(fd, &byte, 1, 0), 0) << "it hangs up";
  ::close(fd);
  server->set("key", bytes_of("value"));
  EXPECT_EQ(make_store("tcp:" + place, 1, milliseconds(20000))->get("key"), bytes_of("value"));
}

TEST(Stores, MissingRanksAndKeysAreNamed) {
  const TemporaryFolder folder;
  const auto store = make_store("file:" + folder.path(), 1, milliseconds(150));
  EXPECT_EQ(message_of<TransportError>([&] { meet(*store, "here", 1, 4); }),
            "store file:" + folder.path() + ": 3 of 4 ranks did not appear in time: rank 0, 2, 3");
  expect_contains(message_of<TransportError>([&] { store->get("x"); }),
                  "'x' did not appear in time");
}

TEST(Stores, AFolderThatWasUsedBeforeIsRefused) {
  const TemporaryFolder folder;
  const std::string address = "file:" + folder.path();
  make_store(address, 0, milliseconds(100))->set("here/0", {});
  expect_contains(message_of<TransportError>(
                      [&] { meet(*make_store(address, 0, milliseconds(100)), "here", 0, 1); }),
                  "the folder must be empty or new");
}

TEST(Stores, AnAddressThatIsNoneIsRefused) {
  for (const char* address :
       {"", "file:", "tcp:", "tcp:host", "tcp::29500", "tcp:host:", "tcp:host:x", "tcp:host:0",
        "tcp:host:65536", "tcp:host:123456", "http://host:1"}) {
    SCOPED_TRACE(address);
    EXPECT_THROW(make_store(address, 1, milliseconds(50)), InvalidArgument);
  }
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << "x";
  expect_contains(message_of<TransportError>(
                      [&] { make_store("file:" + folder.path() + "/file", 0, milliseconds(50)); }),
                  "cannot be made a folder");
}

TEST(Gloo, AnUnknownInterfaceIsRefusedWithTheKnownOnes) {
  if (const std::string why = unavailable("gloo"); !why.empty()) {
    GTEST_SKIP() << why;
  }
  TransportOptions options;
  options.network_interface = "wifi77";
  options.store = "file:/tmp/unused";
  const std::string error = message_of<InvalidArgument>([&] { make_transport("gloo", options); });
  expect_contains(error, "gloo: interface 'wifi77' has no IPv4 address here, known: ");
  expect_contains(error, "lo");
}

/// Sets variables for one test and takes all of ours away after it.
class Environment : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
          "GRADWIRE_RANK", "GRADWIRE_WORLD_SIZE", "GRADWIRE_STORE", "GRADWIRE_INTERFACE"}) {
      unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }
  static std::string error() {
    return message_of<InvalidArgument>([] { comm::from_environment(); });
  }
};

TEST_F(Environment, TorchrunsVariablesAreRead) {
  set("RANK", "3");
  set("WORLD_SIZE", "8");
  set("MASTER_ADDR", "10.0.0.1");
  set("MASTER_PORT", "29500");
  TransportOptions options = comm::from_environment();
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.world_size, 8);
  EXPECT_EQ(options.store, "tcp:10.0.0.1:29500");
  EXPECT_EQ(options.network_interface, "");
  set("TORCHELASTIC_RUN_ID", "job");
  EXPECT_EQ(comm::from_environment().store, "tcp:10.0.0.1:29501") << "29500 is PyTorch's own store";
  set("MASTER_ADDR", "fd00::1");
  EXPECT_EQ(comm::from_environment().store, "tcp:[fd00::1]:29501");
}

TEST_F(Environment, OwnVariablesWin) {
  set("RANK", "3");
  set("WORLD_SIZE", "8");
  set("GRADWIRE_RANK", "1");
  set("GRADWIRE_WORLD_SIZE", "2");
  set("GRADWIRE_STORE", "file:/shared/run1");
  set("GRADWIRE_INTERFACE", "eth1");
  const TransportOptions options = comm::from_environment();
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.world_size, 2);
  EXPECT_EQ(options.store, "file:/shared/run1");
  EXPECT_EQ(options.network_interface, "eth1");
}

TEST_F(Environment, WhatIsMissingOrMalformedIsNamed) {
  expect_contains(error(), "GRADWIRE_WORLD_SIZE is not set, expected it or WORLD_SIZE");
  set("WORLD_SIZE", "4");
  expect_contains(error(), "GRADWIRE_RANK is not set, expected it or RANK");
  set("RANK", "4");
  expect_contains(error(), "RANK is '4', expected a number from 0 to 3");
  set("RANK", "two");
  expect_contains(error(), "RANK is 'two', expected a number from 0 to 3");
  set("RANK", "2");
  expect_contains(error(), "GRADWIRE_STORE is not set, expected it or MASTER_ADDR");
  set("MASTER_ADDR", "host");
  expect_contains(error(), "MASTER_PORT is not set");
  set("MASTER_PORT", "29500x");
  expect_contains(error(), "MASTER_PORT is '29500x', expected a number from 1 to 65535");
}

}  // namespace
}  // namespace gradwire::transport_test
