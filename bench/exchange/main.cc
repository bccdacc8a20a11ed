// gradwire-exchange-bench: one rank of timed collectives and exchanges. Rank 0 prints an event per
// case: the slowest rank's time of each repetition, the bytes each rank counted and the formula's.
// bench/exchange.py starts the ranks and reads the events.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <thread>

#include "bench/exchange/case.h"
#include "bench/trainer/events.h"
#include "bench/trainer/job.h"
#include "bench/trainer/options.h"
#include "bench/trainer/process.h"
#include "gradwire/comm/choose.h"

namespace exchange_bench {
namespace {

constexpr const char* kHelp =
    "gradwire-exchange-bench --case what=NAME;KEY=VALUE;... [--case ...] [--option value ...]\n"
    "  --rank R --world-size N --store WHERE --interface NAME   else from the environment\n"
    "  --timeout-s S --pace RATE --plugin PATH --threads N --die-with-parent PID\n"
    "  --predict ALPHA_S BYTES_PER_S RANKS NUMEL PAYLOAD_BYTES DENSITY   what comm/choose.h says of\n"
    "           topk and of the dense ring\n"
    "  --list   the exchanges of this build, one a line with what each carries\n"
    "  what: all_reduce:rank_order|ring|rabenseifner, all_to_all, all_gather:direct|ring|bruck,\n"
    "        or an exchange; keys: spec support mean numel repetitions (bench/exchange/case.h)\n";

struct Options {
  gradwire::TransportOptions group;
  std::vector<Case> cases;
  int threads = 1;
  long die_with_parent = 0;
};

Options parse_options(std::span<const char* const> arguments) {
  std::map<std::string, std::string, std::less<>> given;
  Options options;
  for (size_t i = 0; i < arguments.size(); i += 2) {
    const std::string_view name = arguments[i];
    gradwire::check(name.starts_with("--") && i + 1 < arguments.size(), "argument '", name,
                    "', expected --option value; --help lists them");
    if (name == "--case") {
      options.cases.push_back(parse_case(arguments[i + 1]));
    } else {
      given[std::string(name.substr(2))] = arguments[i + 1];
    }
  }
  gradwire::check(!options.cases.empty(), "no --case, expected at least one");
  if (!given.contains("rank")) {
    options.group = gradwire::comm::from_environment();
  } else if (const char* const secret = std::getenv("GRADWIRE_JOB_SECRET"); secret != nullptr) {
    options.group.job_secret = secret;  // no option: those are everybody's to read
  }
  options.group.log = [](std::string_view line) {
    std::fprintf(stderr, "gradwire-exchange-bench: %s\n", std::string(line).c_str());
  };
  const std::pair<std::string_view, std::function<void(const std::string&)>> known[] = {
      {"rank", [&](const std::string& v) { options.group.rank = std::stoi(v); }},
      {"world-size", [&](const std::string& v) { options.group.world_size = std::stoi(v); }},
      {"store", [&](const std::string& v) { options.group.store = v; }},
      {"interface", [&](const std::string& v) { options.group.network_interface = v; }},
      {"plugin", [&](const std::string& v) { options.group.plugin_path = v; }},
      {"threads", [&](const std::string& v) { options.threads = std::stoi(v); }},
      {"die-with-parent", [&](const std::string& v) { options.die_with_parent = std::stol(v); }},
      {"timeout-s",
       [&](const std::string& v) {
         options.group.timeout =
             std::chrono::milliseconds(static_cast<int64_t>(1000 * std::stod(v)));
       }},
      {"pace", [&](const std::string& v) {
         options.group.pacing.bits_per_second = trainer::parse_rate(v);
       }}};
  for (const auto& [name, value] : given) {
    const auto row = std::find_if(std::begin(known), std::end(known),
                                  [&](const auto& each) { return each.first == name; });
    gradwire::check(row != std::end(known), "unknown option --", name, "; --help lists them");
    try {
      row->second(value);
    } catch (const std::logic_error&) {  // of std::stoi and its kin
      throw gradwire::InvalidArgument(
          gradwire::concat("--", name, " is '", value, "', expected a number"));
    }
  }
  return options;
}

std::string array_of(std::span<const double> values) {
  std::string text = "[";
  for (const double value : values) {
    char number[32];
    std::snprintf(number, sizeof number, "%.9g", value);
    text += gradwire::concat(text.size() > 1 ? ", " : "", number);
  }
  return text + "]";
}

/// Everyone's sample on every rank, as rows of equal length: seconds, then the numbers.
std::vector<std::vector<double>> everyones(const Sample& own, gradwire::Transport& transport,
                                           gradwire::Context& context) {
  std::vector<double> mine = own.seconds;
  mine.insert(mine.end(), {own.cpu_seconds, own.codec_seconds, own.bytes_sent, own.formula_bytes,
                           own.payload_bytes, own.result_bytes});
  const auto ranks = static_cast<size_t>(transport.world_size());
  std::vector<double> all(ranks * mine.size());
  std::vector<size_t> lengths(ranks);
  const size_t stride = 8 * mine.size();
  transport.all_gather(stride, std::as_bytes(std::span(mine)),
                       {std::as_writable_bytes(std::span(all)), stride, lengths}, {3, "samples"},
                       context);
  context.stream.wait();
  std::vector<std::vector<double>> rows;
  for (size_t r = 0; r < ranks; ++r) {
    const auto row = std::span(all).subspan(r * mine.size(), mine.size());
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

void print_case(const Case& c, std::span<const std::vector<double>> rows) {
  const size_t repetitions = static_cast<size_t>(c.repetitions);
  std::vector<double> slowest(repetitions, 0.0);
  std::vector<std::vector<double>> columns(6);
  for (const std::vector<double>& row : rows) {
    for (size_t i = 0; i < repetitions; ++i) {
      slowest[i] = std::max(slowest[i], row[i]);
    }
    for (size_t i = 0; i < columns.size(); ++i) {
      columns[i].push_back(row[repetitions + i]);
    }
  }
  constexpr const char* kNames[] = {"cpu_seconds",   "codec_seconds", "bytes_sent",
                                    "formula_bytes", "payload_bytes", "result_bytes"};
  trainer::JsonLine head("case");
  head.add("case", c.text).add("world_size", rows.size()).add("repetitions", repetitions);
  std::string text = head.text();
  text.pop_back();
  text += gradwire::concat(", \"seconds\": ", array_of(slowest));
  for (size_t i = 0; i < columns.size(); ++i) {
    text += gradwire::concat(", \"", kNames[i], "\": ", array_of(columns[i]));
  }
  std::printf("%s}\n", text.c_str());
  std::fflush(stdout);
}

void run(const Options& options, trainer::SignalWatch& signals) {
  const auto transport = gradwire::make_transport("gloo", options.group);
  signals.attach(*transport);
  const auto stream = gradwire::make_inline_stream(options.threads);
  gradwire::Workspace workspace;
  gradwire::Context context{*stream, workspace};
  try {
    for (const Case& c : options.cases) {
      const Sample sample = run_case(c, *transport, context);
      const auto rows = everyones(sample, *transport, context);
      if (transport->rank() == 0) {
        print_case(c, rows);
      }
    }
    transport->barrier({4, "the end"}, context);
    stream->wait();
  } catch (const gradwire::InvalidArgument& error) {
    transport->abort(error.what());
    signals.detach(*transport);
    throw;
  } catch (...) {
    signals.detach(*transport);
    throw;
  }
  signals.detach(*transport);
}

/// One JSON object: seconds of each exchange that carries a selection, and of the dense ring.
void predict(std::span<const char* const> numbers) {
  gradwire::check(numbers.size() == 6, "--predict: ", numbers.size(), " numbers, expected 6");
  double values[6];
  for (size_t i = 0; i < 6; ++i) {
    char* end = nullptr;
    values[i] = std::strtod(numbers[i], &end);
    gradwire::check(*end == '\0' && end != numbers[i] && values[i] >= 0, "--predict: '",
                    numbers[i], "', expected a number");
  }
  gradwire::CompressorShape shape;
  shape.numel = 1;
  const auto topk = gradwire::make_compressor(gradwire::parse_spec("topk:1%"), shape);
  auto candidates = gradwire::exchanges_that_carry(*topk);
  candidates.push_back("ring");
  const auto costs = gradwire::exchange_costs({.alpha_s = values[0],
                                               .bytes_per_s = values[1],
                                               .world_size = static_cast<int>(values[2]),
                                               .numel = static_cast<size_t>(values[3]),
                                               .payload_bytes = static_cast<size_t>(values[4]),
                                               .density = values[5],
                                               .union_density = 0},
                                              candidates);
  trainer::JsonLine line("prediction");
  for (const gradwire::ExchangeCost& cost : costs) {
    line.add(cost.exchange, cost.seconds);
  }
  std::printf("%s\n", line.text().c_str());
}

int tell(std::string_view kind, std::string_view message, int code) {
  std::fprintf(stderr, "gradwire-exchange-bench: %s\n", std::string(message).c_str());
  std::printf("%s\n",
              trainer::JsonLine("error").add("kind", kind).add("message", message).text().c_str());
  std::fflush(stdout);
  return code;
}

}  // namespace
}  // namespace exchange_bench

int main(int argc, char** argv) {
  using namespace exchange_bench;
  const std::span<const char* const> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && std::strcmp(arguments[0], "--help") == 0) {
    std::fputs(kHelp, stdout);
    return trainer::kExitOk;
  }
  if (!arguments.empty() && std::strcmp(arguments[0], "--list") == 0) {
    for (const gradwire::ExchangeRow& row : gradwire::exchange_registry()) {
      std::printf("%s\t%s\n", std::string(row.name).c_str(), std::string(row.carries).c_str());
    }
    return trainer::kExitOk;
  }
  try {
    if (!arguments.empty() && std::strcmp(arguments[0], "--predict") == 0) {
      predict(arguments.subspan(1));
      return trainer::kExitOk;
    }
    const Options options = parse_options(arguments);
    if (options.die_with_parent > 0) {
      trainer::die_with_parent(options.die_with_parent);
    }
    trainer::SignalWatch signals([](std::string_view) {});
    run(options, signals);
  } catch (const gradwire::InvalidArgument& error) {
    return tell("invalid_argument", error.what(), trainer::kExitBadArguments);
  } catch (const trainer::BadArguments& error) {
    return tell("invalid_argument", error.what(), trainer::kExitBadArguments);
  } catch (const gradwire::TransportError& error) {
    return tell("transport", error.what(), trainer::kExitRunError);
  } catch (const std::exception& error) {
    return tell("internal", error.what(), trainer::kExitRunError);
  }
  std::printf("%s\n", trainer::JsonLine("done").text().c_str());
  return trainer::kExitOk;
}
