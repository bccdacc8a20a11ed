#pragma once
// A listening socket with a thread: lets in who knows the job's secret and hands on what they say.

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/comm/internal/handshake.h"
#include "gradwire/comm/internal/socket.h"
#include "gradwire/kernels/core/of_process.h"

namespace gradwire {

struct ServerOptions {
  std::string name;  ///< for the log, e.g. "store tcp:10.0.0.1:29500"
  std::string secret;
  size_t clients = 1;  ///< expected; bounds how many connections are held
  std::function<void(std::string_view)> log;
  /// How long a connection may take to prove itself. One that does not is closed, and so is the
  /// oldest of them when there are more than max(32, 2 * clients).
  std::chrono::milliseconds patience{2000};
};

/// Frames from many clients. Everything is called on the server's thread, one at a time.
class Server {
 public:
  using Client = uint64_t;
  struct Callbacks {
    std::function<void(Client, std::string)> request;
    std::function<void(Client)> gone = [](Client) {};  ///< of those that had proven themselves
  };

  Server(Socket listener, ServerOptions options, Callbacks callbacks);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Queues a frame for a client; lost if it has gone. From any thread, also from a callback.
  void send(Client client, std::string_view bytes);

  /// Waits until all clients have hung up, at most this long: what was sent to them is then read.
  void drain(std::chrono::milliseconds at_most);

 private:
  struct Connection {
    Socket socket;
    std::string from;  // address, for the log
    Deadline proves_until;
    Nonce nonce{};
    bool proven = false;
    Seals seals{};
    std::string input, output;
  };

  void run();
  /// What poll() has to say about it; false when the connection is over.
  bool serve(Client client, Connection& connection, short events);
  bool read(Client client, Connection& connection);
  bool check_proof(Connection& connection);
  bool write(Connection& connection);
  void accept_one();
  void close(Client client);
  void refuse(const Connection& connection, std::string_view why) const;
  void wake();

  const OfProcess process_;
  Socket listener_, bell_;
  ServerOptions options_;
  Callbacks callbacks_;
  std::mutex mutex_;  // guards the map's shape, outputs and stop_
  std::map<Client, Connection> connections_;
  Client next_ = 1;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace gradwire
