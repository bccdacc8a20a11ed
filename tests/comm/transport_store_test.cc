// Rendezvous stores.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gradwire/comm/internal/socket.h"
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

// The moment in which a key is set: its file has both names still.
TEST(Stores, AKeyThatIsSetTwiceInAFolderKeepsItsFirstValue) {
  const TemporaryFolder folder;
  const auto store = make_store("file:" + folder.path(), 0, milliseconds(20000));
  store->set("k", std::string("first"));
  const std::filesystem::path key = folder.path() + "/k.key";
  std::filesystem::create_hard_link(key, key.string() + ".partial");
  expect_contains(message_of<TransportError>([&] { store->set("k", std::string("second")); }),
                  "the folder must be empty or new for every group");
  EXPECT_EQ(store->get("k"), bytes_of("first"));
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

const std::string kHowToChange =
    " (the timeout: --timeout of a command, timeout= in Python, TransportOptions::timeout)";

using Ranks = StoreAccess::Ranks;

/// What a connection to 127.0.0.2, an address of this machine that nobody has named, says of a
/// store.
int errno_of_another_address(const std::string& host, Ranks ranks) {
  const std::string port = std::to_string(TakenPort().port());
  StoreAccess access;
  access.ranks = ranks;
  const auto store = make_store(concat("tcp:", host, ":", port), 0, milliseconds(5000), access);
  store->set("key", bytes_of("value"));
  const auto other = make_store(concat("tcp:", host, ":", port), 1, milliseconds(5000), access);
  EXPECT_EQ(other->get("key"), bytes_of("value"));
  Socket socket;
  return connect_once("127.0.0.2", port, std::chrono::steady_clock::now() + milliseconds(5000),
                      socket);
}

TEST(Stores, AServerWithANameListensAtAllAddressesWhereRanksMayBeElsewhere) {
  EXPECT_EQ(errno_of_another_address("localhost", Ranks::kAnywhere), 0);
  EXPECT_EQ(errno_of_another_address("localhost", Ranks::kOnSeveral), 0);
  EXPECT_EQ(errno_of_another_address("localhost", Ranks::kOnOneMachine), ECONNREFUSED);
}

TEST(Stores, AServerWithANumericAddressListensThereAlone) {
  EXPECT_EQ(errno_of_another_address("127.0.0.1", Ranks::kAnywhere), ECONNREFUSED);
  EXPECT_EQ(errno_of_another_address("127.0.0.1", Ranks::kOnOneMachine), ECONNREFUSED);
  EXPECT_EQ(errno_of_another_address("127.0.0.1", Ranks::kOnSeveral), 0) << "which cannot be meant";
}

TEST(Stores, WhereRanksAreFollowsFromThoseOfThisMachine) {
  TransportOptions options;
  options.world_size = 4;
  EXPECT_EQ(access_of(options).ranks, Ranks::kAnywhere);
  options.local_world_size = 2;
  EXPECT_EQ(access_of(options).ranks, Ranks::kOnSeveral);
  options.local_world_size = 4;
  EXPECT_EQ(access_of(options).ranks, Ranks::kOnOneMachine);
}

TEST(Stores, AServerThatIsNotThereIsNamedAtTheDeadline) {
  TakenPort port;
  const std::string place = "127.0.0.1:" + std::to_string(port.release());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(message_of<TransportError>([&] { make_store("tcp:" + place, 1, milliseconds(200)); }),
            "rank 0 did not answer at " + place + " within 0.2 s" + kHowToChange +
                ": Connection refused");
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(100)) << "it tries again";
}

TEST(Stores, ASilentServerIsNamedAtTheDeadline) {
  const TakenPort silent;  // accepts connections, answers nothing
  const std::string place = "tcp:127.0.0.1:" + std::to_string(silent.port());
  EXPECT_EQ(message_of<TransportError>([&] { make_store(place, 1, milliseconds(200)); }),
            "rank 0 did not answer at " + place.substr(4) + " within 0.2 s" + kHowToChange +
                ": no answer within the timeout");
}

TEST(Stores, AnUnknownHostIsNamed) {
  expect_contains(message_of<TransportError>(
                      [] { make_store("tcp:no-such-host.invalid:29500", 1, milliseconds(200)); }),
                  "no-such-host.invalid:29500 within 0.2 s" + kHowToChange + ": ");
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
  char bytes[100];
  EXPECT_EQ(recv(fd, bytes, sizeof(bytes), MSG_WAITALL), 20) << "a challenge, then it hangs up";
  ::close(fd);
  server->set("key", bytes_of("value"));
  EXPECT_EQ(make_store("tcp:" + place, 1, milliseconds(20000))->get("key"), bytes_of("value"));
}

TEST(Stores, MissingRanksAndKeysAreNamed) {
  const TemporaryFolder folder;
  const auto store = make_store("file:" + folder.path(), 1, milliseconds(150));
  EXPECT_EQ(message_of<TransportError>([&] { meet(*store, "here", 1, 4); }),
            "store file:" + folder.path() + ": 3 of 4 ranks did not appear within 0.15 s" +
                kHowToChange + ": rank 0, 2, 3");
  expect_contains(message_of<TransportError>([&] { store->get("x"); }),
                  "'x' did not appear within 0.15 s");
}

TEST(Stores, RanksMissingAtATcpStoreAreNamedToAllAtTheDeadline) {
  const std::string address = "tcp:127.0.0.1:" + std::to_string(TakenPort().port());
  std::array<std::unique_ptr<Store>, 2> stores;  // rank 0's outlives the other's last look
  std::array<std::string, 2> said;
  expect_all_fine(run_threads(2, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    stores[r] = make_store(address, rank, milliseconds(400));
    said[r] = message_of<TransportError>([&] { meet(*stores[r], "here", rank, 4); });
  }));
  for (const std::string& text : said) {
    EXPECT_EQ(text, "store " + address + ": 2 of 4 ranks did not appear within 0.4 s" +
                        kHowToChange + ": rank 2, 3");
  }
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
        "tcp:host:65536", "tcp:host:123456", "http://host:1", "tcp:/host:1", "tcp:a b:1",
        "tcp:[::1:1", "tcp:user@host:1", "tcp:[tcp://host]:1"}) {
    SCOPED_TRACE(address);
    EXPECT_THROW(make_store(address, 1, milliseconds(50)), InvalidArgument);
  }
  // At once, where a name that is not known would be asked for until the deadline.
  EXPECT_EQ(message_of<InvalidArgument>(
                [] { make_store("tcp://10.0.0.1:29500", 1, std::chrono::hours(1)); }),
            "store: address is 'tcp://10.0.0.1:29500', expected tcp:HOST:PORT, without slashes "
            "before the host, an IPv6 address in brackets");
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
  expect_contains(error, "gloo: interface 'wifi77' has no address here, known: ");
  expect_contains(error, "lo");
}

}  // namespace
}  // namespace gradwire::transport_test
