#include "bench/exchange/case.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>

#include "bench/trainer/events.h"
#include "gradwire/comm/exchange.h"
#include "gradwire/comm/transport/frame.h"
#include "gradwire/kernels/core/error.h"

namespace exchange_bench {
namespace {

using gradwire::check;
using gradwire::concat;
using gradwire::Context;
using gradwire::Transport;

constexpr std::string_view kSupports[] = {"uniform", "skewed", "half", "overlap"};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

size_t parse_count(std::string_view key, std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value > 0, "case: ", key,
        " is '", text, "', expected a positive number");
  return value;
}

/// A sign of life for whoever waits: sixteen ranks on a slow link need a minute for one case.
void say_repeated(const Case& c, int repetition, const Transport& transport) {
  if (transport.rank() == 0) {
    const std::string line = trainer::JsonLine("repetition")
                                 .add("case", c.text)
                                 .add("repetition", static_cast<uint64_t>(repetition))
                                 .text();
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
}

/// Calls `step` once, and then timed from a barrier on. What it returns is for the last sample.
Sample repeat(const Case& c, Transport& transport, Context& context,
              const std::function<void(Sample&)>& step) {
  Sample sample;
  for (int i = 0; i <= c.repetitions; ++i) {
    Sample last;
    transport.barrier({1, "the start"}, context);
    context.stream.wait();
    const double cpu = cpu_seconds();
    const auto before = transport.counters();
    const auto begin = std::chrono::steady_clock::now();
    step(last);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    const auto after = transport.counters();
    if (last.bytes_sent == 0) {  // an exchange knows better: it may have groups of its own
      last.bytes_sent = static_cast<double>(after.bytes_sent - before.bytes_sent);
    }
    if (i > 0) {
      last.seconds = std::move(sample.seconds);
      last.seconds.push_back(elapsed.count());
      last.cpu_seconds = sample.cpu_seconds + cpu_seconds() - cpu;
      last.codec_seconds += sample.codec_seconds;
      sample = std::move(last);
    }
    say_repeated(c, i, transport);
  }
  return sample;
}

Sample run_all_reduce(const Case& c, gradwire::AllReduce algorithm, Transport& transport,
                      Context& context) {
  std::vector<float> values(c.numel, 1.0f);
  return repeat(c, transport, context, [&](Sample& sample) {
    transport.all_reduce_sum(values, {2, "values", algorithm}, context);
    context.stream.wait();
    sample.payload_bytes = 4.0 * static_cast<double>(c.numel);
    sample.formula_bytes = static_cast<double>(gradwire::all_reduce_bytes_sent(
        algorithm, c.numel, {transport.rank(), transport.world_size()}));
  });
}

/// Parts of equal length, `numel` floats in all; of an all-gather each rank has one of them.
struct Equal {
  Equal(const Case& c, const Transport& transport)
      : ranks(static_cast<size_t>(transport.world_size())),
        stride(4 * (c.numel / ranks)),
        memory(ranks * stride),
        lengths(ranks, stride) {
    check(stride > 0, "case: numel is ", c.numel, ", expected at least one per rank");
  }
  gradwire::Parts parts() { return {memory, stride, lengths}; }
  double others_bytes() const {
    return static_cast<double>((ranks - 1) * (stride + gradwire::kFrameHeaderBytes));
  }

  size_t ranks, stride;
  std::vector<std::byte> memory;
  std::vector<size_t> lengths;
};

Sample run_all_to_all(const Case& c, Transport& transport, Context& context) {
  Equal send(c, transport), receive(c, transport);
  return repeat(c, transport, context, [&](Sample& sample) {
    transport.all_to_all(send.parts(), receive.parts(), {2, "parts"}, context);
    context.stream.wait();
    sample.payload_bytes = static_cast<double>(send.memory.size());
    sample.formula_bytes = send.others_bytes();
  });
}

Sample run_all_gather(const Case& c, gradwire::AllGather algorithm, Transport& transport,
                      Context& context) {
  Equal all(c, transport);
  const std::vector<std::byte> mine(all.stride);
  double formula = all.others_bytes();
  if (algorithm == gradwire::AllGather::kBruck) {
    formula = 0;
    for (size_t distance = 1; distance < all.ranks; distance *= 2) {
      const size_t parts = std::min(distance, all.ranks - distance), room = all.stride + 8;
      formula += static_cast<double>(gradwire::kFrameHeaderBytes +
                                     parts * room + gradwire::checksum_bytes(parts * room));
    }
  } else if (algorithm == gradwire::AllGather::kRing) {
    formula += static_cast<double>((all.ranks - 1) * gradwire::checksum_bytes(all.stride));
  }
  return repeat(c, transport, context, [&](Sample& sample) {
    transport.all_gather(all.stride, mine, all.parts(), {2, "parts", {}, algorithm}, context);
    context.stream.wait();
    sample.payload_bytes = static_cast<double>(all.stride);
    sample.formula_bytes = formula;
  });
}

/// Indices of the entries, ascending: one in each of `count` equal stretches of the range, so that
/// they are distinct and as good as independent. Stretches drawn from the shared seed are the same on
/// every rank.
std::vector<size_t> draw_support(const Case& c, size_t count, int rank) {
  const size_t range = c.support == "skewed" ? c.numel / 8 : c.numel;
  check(count <= range, "case: ", count, " entries in ", range, " elements, expected fewer");
  std::mt19937_64 shared(7), own(1000 + static_cast<uint64_t>(rank));
  std::vector<size_t> support(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * range / count, end = (i + 1) * range / count;
    const bool together = c.support == "overlap" || (c.support == "half" && i % 2 == 0);
    support[i] = begin + (together ? shared : own)() % (end - begin);
  }
  return support;
}

/// Exactly the entries that the spec selects are not zero; all are, where it does not select.
std::vector<float> draw_gradient(const Case& c, const gradwire::CompressorSpec& spec, int rank) {
  std::vector<float> gradient(c.numel, 0.0f);
  std::minstd_rand values(static_cast<unsigned>(rank) + 1);
  const auto draw = [&values] {
    const float unit = static_cast<float>(values() % 16384) / 16384.0f;
    return values() % 2 == 0 ? 0.25f + unit : -0.25f - unit;
  };
  if (!gradwire::find_compressor(spec.name).selector()) {
    std::generate(gradient.begin(), gradient.end(), draw);
    return gradient;
  }
  const auto kept =
      static_cast<size_t>(std::ceil(spec.choice.density * static_cast<double>(c.numel)));
  for (const size_t index : draw_support(c, std::max<size_t>(kept, 1), rank)) {
    gradient[index] = draw();
  }
  return gradient;
}

Sample run_exchange(const Case& c, Transport& transport, Context& context) {
  const gradwire::CompressorSpec spec = gradwire::parse_spec(c.spec);
  gradwire::CompressorShape shape;
  shape.numel = c.numel;
  shape.rank = transport.rank();
  const auto compressor = gradwire::make_compressor(spec, shape);
  std::vector<float> gradient = draw_gradient(c, spec, transport.rank());
  std::vector<float> before, after;
  if (spec.feedback.on) {
    before.resize(c.numel);
    after.resize(c.numel);
  }
  std::vector<std::byte> payload(compressor->capacity_bytes());
  compressor->compress(gradwire::view_of(std::span(gradient)), before, after, payload, context);
  context.stream.wait();
  before = {};  // several ranks share this machine's memory

  gradwire::Gradient mean = gradwire::view_of(std::span(gradient));
  if (c.mean == "none") {
    gradient = {};
    mean.numel = 0;
  }
  const auto exchange =
      gradwire::make_exchange(c.what, {{compressor.get()}, &transport, {2, "bucket 0"}});
  const gradwire::GroupSlot slot{compressor.get(), payload, after, mean};
  return repeat(c, transport, context, [&](Sample& sample) {
    gradwire::ExchangeReport report;
    exchange->run({&slot, 1}, report, context);
    context.stream.wait();
    check(report.finite(), "case '", c.text, "': the mean is not finite");
    compressor->commit();
    sample.payload_bytes = static_cast<double>(gradwire::payload_bytes(payload));
    sample.bytes_sent = static_cast<double>(report.bytes_sent);
    sample.formula_bytes = static_cast<double>(report.predicted_bytes_sent);
    sample.codec_seconds = 1e-6 * static_cast<double>(report.codec_us);
    for (const gradwire::ConstPayload part : exchange->result(0).parts) {
      sample.result_bytes += static_cast<double>(part.size());
    }
  });
}

}  // namespace

Case parse_case(std::string_view text) {
  Case c;
  c.text = text;
  while (!text.empty()) {
    const std::string_view field = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), field.size() + 1));
    const size_t equals = field.find('=');
    check(equals != std::string_view::npos, "case: '", field, "', expected KEY=VALUE");
    const std::string_view key = field.substr(0, equals), value = field.substr(equals + 1);
    if (key == "what") {
      c.what = value;
    } else if (key == "spec") {
      c.spec = value;
    } else if (key == "support") {
      check(std::find(std::begin(kSupports), std::end(kSupports), value) != std::end(kSupports),
            "case: support is '", value, "', expected uniform, skewed, half or overlap");
      c.support = value;
    } else if (key == "mean") {
      check(value == "dense" || value == "none", "case: mean is '", value,
            "', expected dense or none");
      c.mean = value;
    } else if (key == "numel") {
      c.numel = parse_count(key, value);
    } else if (key == "repetitions") {
      c.repetitions = static_cast<int>(std::min<size_t>(parse_count(key, value), 10000));
    } else {
      throw gradwire::InvalidArgument(
          concat("case: unknown key '", key,
                 "', known: what, spec, support, mean, numel, repetitions"));
    }
  }
  return c;
}

Sample run_case(const Case& c, Transport& transport, Context& context) {
  using gradwire::AllGather;
  using gradwire::AllReduce;
  struct Verb {
    std::string_view name;
    std::function<Sample()> run;
  };
  const auto reduce = [&](AllReduce by) {
    return [&, by] { return run_all_reduce(c, by, transport, context); };
  };
  const auto gather = [&](AllGather by) {
    return [&, by] { return run_all_gather(c, by, transport, context); };
  };
  const Verb verbs[] = {{"all_reduce:rank_order", reduce(AllReduce::kRankOrder)},
                        {"all_reduce:ring", reduce(AllReduce::kRing)},
                        {"all_reduce:rabenseifner", reduce(AllReduce::kRabenseifner)},
                        {"all_gather:direct", gather(AllGather::kDirect)},
                        {"all_gather:ring", gather(AllGather::kRing)},
                        {"all_gather:bruck", gather(AllGather::kBruck)},
                        {"all_to_all", [&] { return run_all_to_all(c, transport, context); }}};
  for (const Verb& verb : verbs) {
    if (verb.name == c.what) {
      return verb.run();
    }
  }
  return run_exchange(c, transport, context);
}

}  // namespace exchange_bench
