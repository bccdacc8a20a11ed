// gradwire-check: does a transport work between the machines this was started on? Every rank runs
// it; the launcher's variables say who it is. Prints a line per rank.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iostream>
#include <optional>
#include <stdexcept>

#include "gradwire/comm/internal/json_text.h"
#include "gradwire/comm/verify.h"

namespace gradwire {
namespace {

constexpr std::string_view kUsage =
    R"(Usage: gradwire-check [--transport gloo|mpi|nccl] [--timeout SECONDS] [--largest BYTES]
                      [--interface NAME] [--store ADDRESS] [--plugin PATH]
                      [--device GPU] [--max-ctas COUNT] [--json -]

Run it on every rank, by torchrun --no-python, mpirun or srun, or with GRADWIRE_RANK,
GRADWIRE_WORLD_SIZE and GRADWIRE_STORE set by hand. Each rank joins the group, checks every
verb of the transport with known bytes, measures a shift (rank r to rank r + 1) of 8 bytes and
of 4 MiB, and prints a line, with --json - a JSON object. Exit status: 0 when all is well, 1 with the reason, 2 for bad usage.
)";

constexpr std::string_view kStarts =
    R"(This is one rank, to be started as the training is. Two of them on this machine:
  torchrun --no-python --nproc-per-node 2 gradwire check
  mpirun -n 2 gradwire check --transport mpi
  srun --ntasks 2 gradwire check
  for r in 0 1; do GRADWIRE_RANK=$r GRADWIRE_WORLD_SIZE=2 GRADWIRE_STORE=tcp:127.0.0.1:29400 gradwire check & done; wait
A C++ installation has it as gradwire-check. docs/cluster.md is about several machines.
)";

constexpr int kFailed = 1, kBadUsage = 2;

/// The variables do not say who this rank is.
class NotStarted : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

struct Arguments {
  std::string transport = "gloo";
  VerifyOptions verify{};
  TransportOptions options{};
  bool json = false;
};

struct Range {
  size_t least = 0, most = size_t{1} << 30;
};

size_t number(std::string_view name, std::string_view text, const Range& range = {}) {
  size_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && rest == text.data() + text.size() && value >= range.least &&
            value <= range.most,
        name, ": is '", text, "', expected a whole number from ", range.least, " to ", range.most);
  return value;
}

constexpr size_t kMostSeconds = 1'000'000;

std::string_view transport_name(std::string_view value) {
  std::vector<std::string_view> known;
  for (const TransportRow& row : transport_registry()) {
    if (row.name == value) {
      return row.name;
    }
    known.push_back(row.name);
  }
  throw_unknown_name("--transport", value, known);
}

struct Word {
  std::string_view name;
  void (*take)(Arguments&, std::string_view name, const std::string& value);
};

constexpr std::array<Word, 9> kWords{{
    {"--transport",
     [](Arguments& a, auto, const auto& value) { a.transport = transport_name(value); }},
    {"--timeout",
     [](Arguments& a, auto name, const auto& value) {
       const size_t seconds = number(name, value, {1, kMostSeconds});
       a.options.timeout = std::chrono::seconds(seconds);
     }},
    {"--largest", [](Arguments& a, auto name,
                     const auto& value) { a.verify.largest_bytes = number(name, value); }},
    {"--interface",
     [](Arguments& a, auto, const auto& value) { a.options.network_interface = value; }},
    {"--store", [](Arguments& a, auto, const auto& value) { a.options.store = value; }},
    {"--plugin", [](Arguments& a, auto, const auto& value) { a.options.plugin_path = value; }},
    {"--device",
     [](Arguments& a, auto name, const auto& value) {
       a.options.nccl.device_index = static_cast<int>(number(name, value));
     }},
    {"--max-ctas",
     [](Arguments& a, auto name, const auto& value) {
       a.options.nccl.max_ctas = static_cast<int>(number(name, value));
     }},
    {"--json",
     [](Arguments& a, auto name, const auto& value) {
       check(value == "-", name, ": is '", value,
             "', expected -: every rank prints its own on standard output");
       a.json = true;
     }},
}};

const Word& find_word(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Word& word : kWords) {
    if (word.name == name) {
      return word;
    }
    known.push_back(word.name);
  }
  throw_unknown_name("argument", name, known);
}

void take(std::span<char* const> words, Arguments& arguments) {
  for (size_t i = 0; i < words.size(); i += 2) {
    const Word& word = find_word(words[i]);
    check(i + 1 < words.size(), word.name, ": no value follows, expected one; see --help");
    word.take(arguments, word.name, words[i + 1]);
  }
}

Arguments parse(std::span<char* const> words) {
  Arguments arguments;
  take(words, arguments);  // a wrong word is said before a variable that is missing
  try {
    arguments.options = comm::from_environment();
  } catch (const InvalidArgument& error) {
    throw NotStarted(error.what());
  }
  arguments.options.log = [](std::string_view line) { std::cerr << concat(line, "\n"); };
  take(words, arguments);
  return arguments;
}

void finish(Transport& transport, Context& context) {
  context.stream.wait();
  transport.throw_if_failed();
}

/// Seconds of the fastest of `rounds` calls in which each rank sends `bytes` to the next one.
double shift_seconds(Transport& transport, size_t bytes, int rounds, Context& context) {
  const auto ranks = static_cast<size_t>(transport.world_size());
  const Buffer out(ranks * bytes, context.stream.device()), in(ranks * bytes, out.device());
  std::vector<size_t> out_lengths(ranks, 0), in_lengths(ranks, 0);
  out_lengths[(static_cast<size_t>(transport.rank()) + 1) % ranks] = bytes;
  double fastest = 1e9;
  for (int round = 0; round < rounds; ++round) {
    transport.barrier({0, "a measurement"}, context);
    finish(transport, context);
    const auto start = std::chrono::steady_clock::now();
    transport.all_to_all({out.bytes(), bytes, out_lengths}, {in.bytes(), bytes, in_lengths},
                         {bytes, "a measurement"}, context);
    finish(transport, context);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fastest = std::min(fastest, took.count());
  }
  return fastest;
}

std::string host() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

struct Shift {
  int latency_us = 0;  // of 8 bytes
  int mbit_per_s = 0;  // of 4 MiB
};

Shift examine(const Arguments& arguments) {
  constexpr size_t kLong = size_t{4} << 20;
  const auto transport = make_transport(arguments.transport, arguments.options);
  const Device device = transport->traits().device;
  const auto stream =
      device.type == DeviceType::kCuda ? cuda::make_stream(device.index) : make_cpu_stream();
  Workspace workspace(device);
  Context context{*stream, workspace};
  verify_transport(*transport, arguments.verify, context);
  const double latency = shift_seconds(*transport, 8, 50, context);
  const double seconds = shift_seconds(*transport, kLong, 5, context);
  transport->barrier({0, "the end"}, context);
  finish(*transport, context);
  return {.latency_us = static_cast<int>(latency * 1e6),
          .mbit_per_s = static_cast<int>(8e-6 * static_cast<double>(kLong) / seconds)};
}

// What a rank has found: a shift, or the reason why there is none.
std::string to_json(const Arguments& arguments, const std::optional<Shift>& shift,
                    std::string_view error) {
  const auto text = [](std::string_view value) { return concat('"', json_text(value), '"'); };
  const auto number = [&](int Shift::*field) {
    return shift.has_value() ? std::to_string((*shift).*field) : "null";
  };
  return concat("{\"transport\": ", text(arguments.transport),
                ", \"rank\": ", arguments.options.rank,
                ", \"world_size\": ", arguments.options.world_size, ", \"host\": ", text(host()),
                ", \"ok\": ", shift.has_value() ? "true" : "false",
                ", \"shift_of_8_bytes_us\": ", number(&Shift::latency_us),
                ", \"shift_of_4_mib_mbit_per_s\": ", number(&Shift::mbit_per_s),
                ", \"error\": ", shift.has_value() ? "null" : text(error), "}");
}

void print(std::string_view line) {
  std::cout << concat(line, "\n") << std::flush;
  if (!std::cout.good()) {
    throw std::runtime_error("standard output: cannot be written to");
  }
}

int run(std::span<char* const> words) {
  if (words.size() == 1 &&
      (std::string_view(words[0]) == "--help" || std::string_view(words[0]) == "-h")) {
    std::cout << kUsage;
    return 0;
  }
  Arguments arguments;
  try {
    arguments = parse(words);
  } catch (const NotStarted& error) {
    std::cerr << concat("gradwire-check: ", error.what(), "\n", kStarts);
    return kBadUsage;
  } catch (const InvalidArgument& error) {
    std::cerr << concat("gradwire-check: ", error.what(), "\n");
    return kBadUsage;
  }
  const std::string self = concat(arguments.transport, ": rank ", arguments.options.rank, " of ",
                                  arguments.options.world_size, " on ", host(), ": ");
  std::optional<Shift> shift;
  const auto say_why = [&](const std::exception& error) {
    std::cerr << concat(self, "FAILED: ", error.what(), "\n");
    if (arguments.json && !shift.has_value()) {
      std::cout << concat(to_json(arguments, {}, error.what()), "\n") << std::flush;
    }
  };
  try {
    shift = examine(arguments);
    print(arguments.json ? to_json(arguments, shift, {})
                         : concat(self, "OK, shift of 8 bytes ", shift->latency_us,
                                  " us, of 4 MiB ", shift->mbit_per_s, " Mbit/s"));
    return 0;
  } catch (const InvalidArgument& error) {  // as a store whose address is none
    say_why(error);
    return kBadUsage;
  } catch (const std::exception& error) {
    say_why(error);
    return kFailed;
  }
}

}  // namespace
}  // namespace gradwire

int main(int count, char** words) { return gradwire::run({words + 1, words + count}); }
