// One rank of a job that things happen to; bench/faults.py starts it and says what to expect.
//
// Steps a Reducer over Gloo and prints a JSON line per event, with the monotonic clock in seconds:
// joined, running (after the second step), error, rebuilt, done (with a digest of all means).

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/flipping_wire.h"
#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/internal/address.h"
#include "gradwire/comm/internal/plugin_engine.h"
#include "gradwire/comm/reducer.h"
#include "gradwire/comm/store.h"
#include "gradwire/comm/transport/point_to_point_transport.h"

namespace {

using namespace gradwire;  // a program, not a header
using std::chrono::milliseconds;

struct Arguments {
  std::map<std::string, std::string> values{
      {"rank", "0"},          {"world-size", "3"},    {"store", ""},        {"interface", "lo"},
      {"timeout-ms", "1500"}, {"method", "none"},     {"exchange", "auto"}, {"numel", "200000"},
      {"steps", "1000000"},   {"sleep-ms", "0"},      {"jitter-ms", "0"},   {"corrupt-step", "-1"},
      {"rebuild", "0"},       {"flip-message", "-1"}, {"flip-byte", "0"}};

  const std::string& text(const std::string& name) const { return values.at(name); }
  int number(const std::string& name) const {
    const std::string& value = text(name);
    int number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    check(error == std::errc() && end == value.data() + value.size(), "--", name, " is '", value,
          "', expected a number");
    return number;
  }
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string argument = argv[i];
    const std::string name = argument.starts_with("--") ? argument.substr(2) : argument;
    check(arguments.values.contains(name) && i + 1 < argc,
          "unknown argument, or one without a value: '", argument, "'");
    arguments.values[name] = argv[i + 1];
  }
  return arguments;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

void say(const std::string& event, const std::string& fields = "") {
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  std::printf("{\"event\": \"%s\", \"at\": %.6f%s}\n", event.c_str(), now.count(), fields.c_str());
  std::fflush(stdout);
}

/// Changes a bit of everything this rank receives in one call, as a broken wire would.
class CorruptingEngine final : public PointToPoint {
 public:
  explicit CorruptingEngine(std::shared_ptr<PointToPoint> engine) : engine_(std::move(engine)) {}
  void corrupt() { corrupts_ = true; }

  int rank() const override { return engine_->rank(); }
  int world_size() const override { return engine_->world_size(); }
  MessageHandle post_send(int to, uint64_t tag, std::span<const std::byte> bytes) override {
    return engine_->post_send(to, tag, bytes);
  }
  MessageHandle post_recv(int from, uint64_t tag, std::span<std::byte> bytes) override {
    const MessageHandle handle = engine_->post_recv(from, tag, bytes);
    posted_[handle] = bytes;
    return handle;
  }
  void wait(MessageHandle message, Deadline deadline) override {
    engine_->wait(message, deadline);
    const std::span<std::byte> bytes = posted_[message];
    if (corrupts_ && bytes.size() > 4000) {
      bytes[4000] ^= std::byte{1};
    }
  }
  void close(std::string_view reason) noexcept override { engine_->close(reason); }

 private:
  std::shared_ptr<PointToPoint> engine_;
  std::map<MessageHandle, std::span<std::byte>> posted_;
  bool corrupts_ = false;
};

struct Group {
  std::unique_ptr<Transport> transport;
  CorruptingEngine* engine = nullptr;  // where a byte is to change
};

Group join(const Arguments& arguments) {
  TransportOptions options;
  options.rank = arguments.number("rank");
  options.world_size = arguments.number("world-size");
  options.timeout = milliseconds(arguments.number("timeout-ms"));
  options.store = arguments.text("store");
  options.network_interface = arguments.text("interface");
  if (const char* const secret = std::getenv("GRADWIRE_JOB_SECRET"); secret != nullptr) {
    options.job_secret = secret;
  }
  options.log = [](std::string_view line) {
    say("log", ", \"line\": " + quoted(std::string(line)));
  };
  const bool flips = arguments.number("flip-message") >= 0;
  if (arguments.number("corrupt-step") < 0 && !flips) {
    return {make_transport("gloo", options), nullptr};
  }
  const auto store = make_store(options.store, options.rank, options.timeout,
                                {options.job_secret, options.log, 16});
  const std::string& interface = options.network_interface;
  const std::string address =
      chosen_address(meet(*store, "address", options.rank, options.world_size,
                          address_offer(interface, store->local_address())),
                     options.rank, interface);
  const gradwire_plugin_table* gloo = &load_plugin("gloo", PluginSymbols::kOwn, options);
  if (flips && options.rank == 0) {
    faults::Flip flip{.message = arguments.number("flip-message"),
                      .byte = static_cast<size_t>(arguments.number("flip-byte"))};
    flip.say = [](const std::string& where) { say("flipped", ", \"where\": " + quoted(where)); };
    gloo = &faults::FlippingWire::over(*gloo, std::move(flip));
  }
  auto engine = std::make_shared<CorruptingEngine>(
      make_plugin_engine(*gloo, options, {store.get(), address, store->deadline()}));
  meet(*store, "joined", options.rank, options.world_size);
  CorruptingEngine* const broken = engine.get();
  return {make_point_to_point_transport("gloo", std::move(engine), options), broken};
}

/// Steps until an error or the last step; adds every mean to `digest`.
void work(Reducer& reducer, const Arguments& arguments, CorruptingEngine* engine, int steps,
          uint64_t& digest) {
  std::mt19937 generator(static_cast<unsigned>(arguments.number("rank")));
  const int sleep = arguments.number("sleep-ms"), jitter = arguments.number("jitter-ms");
  for (int step = 0; step < steps; ++step) {
    if (engine != nullptr && step == arguments.number("corrupt-step") &&
        arguments.number("rank") == 0) {
      engine->corrupt();
    }
    const std::span<float> gradient = reducer.gradient(0).as<float>();
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>((i * 7 + static_cast<size_t>(step)) % 1000) - 500.0f;
    }
    const auto random = generator() % static_cast<unsigned>(jitter + 1);
    std::this_thread::sleep_for(milliseconds(sleep + static_cast<int>(random)));
    reducer.grad_ready(0);
    reducer.wait();
    digest = fnv1a(std::as_bytes(reducer.gradient(0).as<float>().first(1000))) ^ digest * 3;
    if (step == 1) {
      say("running");
    }
  }
}

void run(const Arguments& arguments) {
  Group group = join(arguments);
  say("joined");
  PlanOptions plan;
  plan.spec = parse_spec(arguments.text("method"));
  plan.exchange = arguments.text("exchange");
  const ParamInfo weight{"weight", {static_cast<size_t>(arguments.number("numel")) / 2, 2}};
  uint64_t digest = 1;
  Reducer reducer(make_plan({&weight, 1}, plan), *group.transport);
  try {
    work(reducer, arguments, group.engine, arguments.number("steps"), digest);
  } catch (const TransportError& error) {
    say("error", concat(", \"peer\": ", error.peer(), ", \"message\": ", quoted(error.what())));
    if (arguments.number("rebuild") == 0) {
      return;
    }
    auto next =
        group.transport->rebuild({.timeout = milliseconds(5000), .silence = milliseconds(300)});
    reducer.rebuild(*next);
    std::string members;
    for (const int rank : next->old_ranks()) {
      members += concat(members.empty() ? "" : ", ", rank);
    }
    say("rebuilt", concat(", \"ranks\": [", members, "]"));
    digest = 1;
    work(reducer, arguments, nullptr, 50, digest);
    std::swap(group.transport, next);  // the old one goes last
    say("done", concat(", \"digest\": ", digest));
    return;
  }
  say("done", concat(", \"digest\": ", digest));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    say("error", concat(", \"peer\": -1, \"message\": ", quoted(error.what())));
    return 1;
  }
}
