#pragma once
// Groups of ranks as threads of this process, over every transport, for the transport tests.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/comm/transport.h"
#include "tests/comm/carrier_over.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::transport_test {

/// "in_process", "paced" (in_process over links of 2 Gbit/s), "gloo" or "carrier" (the collectives of
/// an in_process group as somebody else's).
using Kind = std::string;

inline std::vector<Kind> kinds() { return {"in_process", "paced", "gloo", "carrier"}; }

/// Those whose collectives are ours, message by message.
inline std::vector<Kind> point_to_point_kinds() { return {"in_process", "paced", "gloo"}; }

/// Why ranks of this kind cannot be made here; empty when they can.
inline std::string unavailable(const Kind& kind) {
  if (kind != "gloo") {
    return {};
  }
  for (const TransportRow& row : transport_registry()) {
    if (row.name == kind) {
      return row.unavailable_reason({});
    }
  }
  return "the gloo transport is not in this build";
}

using gradwire::test_support::TemporaryFolder;

/// A port of 127.0.0.1 that something else listens on.
class TakenPort {
 public:
  TakenPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd_, 1) != 0 ||
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw std::runtime_error("no free port");
    }
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { release(); }
  int port() const { return port_; }
  int release() {
    if (fd_ >= 0) {
      ::close(fd_);
      fd_ = -1;
    }
    return port_;
  }

 private:
  int fd_;
  int port_ = 0;
};

/// What one rank's body gets.
struct Rank {
  Transport& transport;
  Context& context;
  int rank;
  int size;
};

/// Runs `body` once per thread, and says what each threw ("" for nothing).
inline std::vector<std::string> run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = test::words_of(error);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

inline std::vector<std::unique_ptr<Transport>> make_group(const Kind& kind, int size,
                                                          TransportOptions options = {}) {
  if (kind == "carrier") {
    auto engines = make_in_process_group(size, options);
    std::vector<std::unique_ptr<Transport>> group(engines.size());
    const auto errors = run_threads(size, [&](int r) {
      const auto place = static_cast<size_t>(r);
      group[place] = make_carrier_transport("carrier", carrier_over(std::move(engines[place])),
                                            {.timeout = options.timeout});
    });
    for (const std::string& error : errors) {
      if (!error.empty()) {
        throw std::runtime_error(error);
      }
    }
    return group;
  }
  if (kind != "gloo") {
    options.pacing.bits_per_second = kind == "paced" ? 2e9 : 0;
    return make_in_process_group(size, options);
  }
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Transport>> group(static_cast<size_t>(size));
  const auto errors = run_threads(size, [&](int r) {
    TransportOptions own = options;
    own.rank = r;
    own.world_size = size;
    own.store = "file:" + folder.path();
    own.network_interface = "lo";
    group[static_cast<size_t>(r)] = make_transport("gloo", own);
  });
  for (const std::string& error : errors) {
    if (!error.empty()) {
      throw std::runtime_error(error);
    }
  }
  return group;
}

/// Runs `body` on every rank of a new group, each with an inline stream. Transports are destroyed
/// after all bodies have returned.
inline std::vector<std::string> run_ranks(const Kind& kind, int size,
                                          const TransportOptions& options,
                                          const std::function<void(Rank)>& body) {
  const auto group = make_group(kind, size, options);
  return run_threads(size, [&](int r) {
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    body({*group[static_cast<size_t>(r)], context, r, size});
  });
}

inline void expect_all_fine(const std::vector<std::string>& errors) {
  for (size_t r = 0; r < errors.size(); ++r) {
    EXPECT_EQ(errors[r], "") << "rank " << r;
  }
}

}  // namespace gradwire::transport_test
