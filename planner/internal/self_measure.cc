#include "gradwire/planner/internal/self_measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/fingerprint.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire::planner {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepeats = 3;  // of which the fastest counts
constexpr size_t kFewElements = 4096;

template <class Work>
double seconds_of(const Work& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

template <class Work>
double fastest_of(const Work& work) {
  double fastest = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const double took = seconds_of(work);
    fastest = repeat == 0 ? took : std::min(fastest, took);
  }
  return fastest;
}

/// A compressor alone, with memory of its own. The gradient is one matrix of so many rows, or none.
class TimedCodec {
 public:
  TimedCodec(const CompressorSpec& spec, size_t numel, size_t rows = 0)
      : compressor_(make_compressor(
            lasting_spec(spec),
            {.numel = numel, .segments = {{.parameter = 0, .numel = numel, .rows = rows}}})),
        payload_(std::max(compressor_->capacity_bytes(), compressor_->first_bytes())),
        residual_(spec.feedback.on ? numel : 0),
        next_(residual_.size()),
        decoded_(numel) {}

  void compress(std::span<const float> gradient, Context& context) {
    compressor_->compress({gradient.data(), gradient.size(), DType::kFloat32}, residual_, next_,
                          payload_, context);
    context.stream.wait();
    if (compressor_->rounds() == 2) {
      const ConstPayload first[] = {sent()};
      compressor_->take_first(first, 1.0f, context);
      context.stream.wait();
      compressor_->compress_second({gradient.data(), gradient.size(), DType::kFloat32}, residual_,
                                   next_, payload_, context);
      context.stream.wait();
    }
  }
  void commit() {
    std::swap(residual_, next_);
    compressor_->commit();
  }
  std::span<const float> decompress(Context& context) {
    const ConstPayload parts[] = {sent()};
    compressor_->decompress(parts, 1.0f, {decoded_.data(), decoded_.size(), DType::kFloat32},
                            context);
    context.stream.wait();
    return decoded_;
  }

 private:
  ConstPayload sent() const {
    return ConstPayload(payload_).first(payload_bytes(ConstPayload(payload_)));
  }

  std::unique_ptr<Compressor> compressor_;
  std::vector<std::byte> payload_;
  std::vector<float> residual_, next_, decoded_;
};

/// Of the largest square matrix in so many elements.
size_t rows_of(size_t numel) {
  auto rows = static_cast<size_t>(std::sqrt(static_cast<double>(numel)));
  while ((rows + 1) * (rows + 1) <= numel) {  // a root may be rounded down
    ++rows;
  }
  return rows;
}

struct CodecTimes {
  double encode_s = 0, decode_s = 0;
};

/// Of a spec with a rank: of the largest square matrix that the gradient has. What an element costs
/// depends on the rank, hardly on the shape.
std::span<const float> usable(const CompressorSpec& spec, std::span<const float> gradient) {
  const size_t rows = rows_of(gradient.size());
  return spec.choice.rank == 0 ? gradient : gradient.first(rows * rows);
}

CodecTimes times_of(const CompressorSpec& spec, std::span<const float> gradient, Context& context) {
  if (spec.choice.rank == 0) {
    TimedCodec codec(spec, gradient.size());
    return {fastest_of([&] { codec.compress(gradient, context); }),
            fastest_of([&] { codec.decompress(context); })};
  }
  // A step multiplies by the one side and the next by the other, which costs something else: the
  // mean of two.
  TimedCodec codec(spec, gradient.size(), rows_of(gradient.size()));
  CodecTimes fastest;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    CodecTimes pair;
    for (int side = 0; side < 2; ++side) {
      pair.encode_s += seconds_of([&] { codec.compress(gradient, context); }) / 2;
      pair.decode_s += seconds_of([&] { codec.decompress(context); }) / 2;
      codec.commit();
    }
    fastest = repeat == 0 ? pair
                          : CodecTimes{std::min(fastest.encode_s, pair.encode_s),
                                       std::min(fastest.decode_s, pair.decode_s)};
  }
  return fastest;
}

double squared(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value) * value;
  }
  return sum;
}

double squared_difference(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return sum;
}

}  // namespace

std::vector<std::vector<double>> gather_doubles(std::span<const double> mine, Transport& transport,
                                                Context& context) {
  const std::span<const std::byte> bytes = std::as_bytes(mine);
  Messages all(transport.world_size(), std::max<size_t>(bytes.size(), 1));
  const auto own = static_cast<size_t>(transport.rank());
  all.length(own) = bytes.size();
  std::memcpy(all.room(own).data(), bytes.data(), bytes.size());
  transport.all_gather(all.length(own), all.message(own), all.parts(),
                       {fnv1a("autopilot"), "the autopilot's measurements"}, context);
  context.stream.wait();
  std::vector<std::vector<double>> rows;
  for (size_t r = 0; r < static_cast<size_t>(transport.world_size()); ++r) {
    const auto message = all.message(r);
    if (message.size() != bytes.size()) {
      throw TransportError(concat("rank ", r, " sent ", message.size(),
                                  " bytes of measurements, expected ", bytes.size()),
                           static_cast<int>(r));
    }
    std::memcpy(rows.emplace_back(mine.size()).data(), message.data(), message.size());
  }
  return rows;
}

std::map<std::string, CodecCost> time_codecs(std::span<const std::string> specs,
                                             std::span<const float> gradient, Context& context) {
  check(!gradient.empty(), "time_codecs: a gradient of 0 elements, expected at least 1");
  const std::span<const float> few = gradient.first(std::min(kFewElements, gradient.size()));
  std::map<std::string, CodecCost> costs;
  for (const std::string& text : specs) {
    const CompressorSpec spec = parse_spec(text);
    const std::span<const float> least = usable(spec, few);
    const std::span<const float> all = usable(spec, gradient);
    const CodecTimes small = times_of(spec, least, context);
    CodecCost& cost = costs[text];
    cost = {.encode_floor_s = small.encode_s, .decode_floor_s = small.decode_s};
    if (least.size() == all.size()) {
      continue;
    }
    const CodecTimes large = times_of(spec, all, context);
    const double more = 4.0 * static_cast<double>(all.size() - least.size());
    const auto line = [&](double small_s, double large_s, double& floor_s, double& rate) {
      if (large_s > small_s) {
        rate = more / (large_s - small_s);
        floor_s = std::max(0.0, small_s - 4.0 * static_cast<double>(least.size()) / rate);
      }
    };
    line(small.encode_s, large.encode_s, cost.encode_floor_s, cost.encode_bytes_per_s);
    line(small.decode_s, large.decode_s, cost.decode_floor_s, cost.decode_bytes_per_s);
  }
  return costs;
}

PilotCosts agreed_costs(const PilotCosts& mine, Transport& transport, Context& context) {
  // Rates as seconds per byte, so that the largest of all numbers is the slowest.
  const auto slowness = [](double rate) { return rate > 0 ? 1 / rate : 0; };
  std::vector<double> numbers = mine.ready_s;
  numbers.insert(numbers.end(), {mine.alpha_s, slowness(mine.bytes_per_s)});
  for (const auto& [spec, cost] : mine.codecs) {
    numbers.insert(numbers.end(), {cost.encode_floor_s, slowness(cost.encode_bytes_per_s),
                                   cost.decode_floor_s, slowness(cost.decode_bytes_per_s)});
  }
  std::vector<double> most(numbers.size());
  for (const std::vector<double>& row : gather_doubles(numbers, transport, context)) {
    std::ranges::transform(row, most, most.begin(),
                           [](double a, double b) { return std::max(a, b); });
  }
  PilotCosts agreed = mine;
  auto next = most.begin();
  for (double& ready_s : agreed.ready_s) {
    ready_s = *next++;
  }
  agreed.alpha_s = *next++;
  agreed.bytes_per_s = slowness(*next++);
  for (auto& [spec, cost] : agreed.codecs) {
    cost.encode_floor_s = *next++;
    cost.encode_bytes_per_s = slowness(*next++);
    cost.decode_floor_s = *next++;
    cost.decode_bytes_per_s = slowness(*next++);
  }
  return agreed;
}

void NormMeter::before(ParamId p, std::span<const float> gradient, ConstResidual residual,
                       const CompressorSpec& spec) {
  if (keeps_velocity(spec) || spec.feedback.ef21 || (spec.choice.rank != 0 && !spec.feedback.on)) {
    return;  // what is compressed is not g + e, or cannot be encoded once more by itself
  }
  std::vector<float>& a = kept_[p];
  a.assign(gradient.begin(), gradient.end());
  gradient2_[p] = squared(gradient);
  const auto decay = static_cast<float>(spec.feedback.decay);
  for (size_t i = 0; i < residual.size(); ++i) {
    a[i] += decay * residual[i];
  }
}

void NormMeter::behind(ParamId p, std::span<const float> mean, ConstResidual residual,
                       const CompressorSpec& spec, Context& context) {
  std::vector<float>& a = kept_[p];
  if (a.empty()) {
    return;
  }
  GuardNorms& norms = norms_[p];
  const double to_send = squared(a);
  norms.to_send += to_send;
  norms.gradient += gradient2_[p];
  norms.mean += squared(mean);
  if (!residual.empty()) {
    norms.sent += squared_difference(a, residual);
    norms.residual += squared(residual);
  } else if (only_casts(spec)) {
    norms.sent += to_send;
  } else {
    // Nobody keeps what a spec without feedback leaves out: it is encoded once more.
    TimedCodec codec(spec, a.size());
    codec.compress(a, context);
    const std::span<const float> decoded = codec.decompress(context);
    norms.sent += squared(decoded);
    norms.residual += squared_difference(a, decoded);
  }
  a.clear();  // its memory stays
}

void NormMeter::clear() {
  std::ranges::fill(norms_, GuardNorms{});
  for (std::vector<float>& a : kept_) {
    a.clear();
  }
}

}  // namespace gradwire::planner
