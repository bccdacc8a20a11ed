#pragma once
// One exchange of one bucket on all ranks, with everything that went in and came out.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/subgroups.h"
#include "tests/support/ranks.h"

namespace gradwire::test {

struct ExchangeCase {
  std::string exchange;
  std::vector<CompressorSpec> specs;  ///< of each group
  std::vector<size_t> numels;         ///< of each group
  DType dtype = DType::kFloat32;
  int world_size = 1;

  std::string text() const {
    std::string all = concat(exchange, " world_size=", world_size, " ", to_string(dtype));
    for (size_t g = 0; g < specs.size(); ++g) {
      all += concat(" ", to_string(specs[g]), "[", numels[g], "]");
    }
    return all;
  }
};

/// One group on one rank.
struct GroupResult {
  std::vector<float> gradient;  ///< rounded to the dtype
  std::vector<float> before;    ///< residual e; zeros without feedback
  std::vector<float> sent;      ///< what the payload decodes to
  std::vector<float> after;     ///< e_next when the exchange has ended; zeros without feedback
  std::vector<float> kept;      ///< e_next when compression had ended
  std::vector<std::byte> mean;
  size_t payload_bytes = 0, capacity_bytes = 0;
  bool fixed_length = false;
  int rounds = 1;
  uint8_t format = 0;  ///< of the payload's header

  float mean_at(size_t i, DType dtype) const {
    return dispatch(dtype, [&]<class T>() {
      T value;
      std::memcpy(&value, mean.data() + i * sizeof(T), sizeof(T));
      return to_float(value);
    });
  }
};

struct RankResult {
  std::vector<GroupResult> groups;
  ExchangeReport report;
  TrafficCounters counters;
  uint64_t predicted_from_capacity = 0;
  bool reencodes = false;
};

/// Normal values over several magnitudes; the seed is the case's own, so every run is the same.
/// Taken from one table, from a place that depends on the seed: drawing them anew takes longer than
/// the exchanges do.
inline std::vector<float> random_values(size_t numel, unsigned seed) {
  static const std::vector<float> table = [] {
    std::mt19937 generator(20);
    std::normal_distribution<float> normal;
    std::vector<float> drawn(65521);
    for (float& value : drawn) {
      value = normal(generator) * std::exp(0.5f * normal(generator));
    }
    return drawn;
  }();
  std::vector<float> values(numel);
  for (size_t i = 0; i < numel; ++i) {
    values[i] = table[(i + size_t{seed} * 7919) % table.size()];
  }
  return values;
}

inline std::vector<std::byte> as_bytes(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  dispatch(dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) {
      const T value = from_float<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

/// What `payload` says, in float32.
inline std::vector<float> decode(const CompressorSpec& spec, DType dtype, const GroupResult& group,
                                 ConstPayload payload, Context& context) {
  std::vector<float> decoded(group.gradient.size());
  if (spec.codec.values == ValueCodec::kRaw) {  // the elements as they are, behind the header
    dispatch(dtype, [&]<class T>() {
      for (size_t i = 0; i < decoded.size(); ++i) {
        T value;
        std::memcpy(&value, payload.data() + 32 + i * sizeof(T), sizeof(T));
        decoded[i] = to_float(value);
      }
    });
    return decoded;
  }
  CompressorShape shape;
  shape.numel = decoded.size();
  const auto reader = make_compressor(spec, shape);
  reader->decompress({&payload, 1}, 1.0f, view_of(std::span(decoded)), context);
  context.stream.wait();
  return decoded;
}

/// Memory of one group while it is exchanged.
struct GroupMemory {
  std::unique_ptr<Compressor> compressor;
  std::vector<std::byte> gradient, payload;
  std::vector<float> before, after;
};

inline GroupMemory make_group(const ExchangeCase& c, size_t g, int rank, GroupResult& result) {
  CompressorShape shape;
  shape.numel = c.numels[g];
  shape.dtype = c.dtype;
  shape.seed = 11;
  shape.rank = rank;
  GroupMemory memory;
  memory.compressor = make_compressor(c.specs[g], shape);
  const auto seed = static_cast<unsigned>(1000 * g) + static_cast<unsigned>(rank);
  memory.gradient = as_bytes(random_values(shape.numel, seed), c.dtype);
  result.mean = memory.gradient;
  dispatch(c.dtype, [&]<class T>() {
    result.gradient.resize(shape.numel);
    for (size_t i = 0; i < shape.numel; ++i) {
      result.gradient[i] = to_float(reinterpret_cast<const T*>(memory.gradient.data())[i]);
    }
  });
  result.before.assign(shape.numel, 0.0f);
  if (c.specs[g].feedback.on) {
    result.before = random_values(shape.numel, seed + 500);
    memory.before = result.before;
    memory.after.assign(shape.numel, 0.0f);
  }
  memory.payload.resize(memory.compressor->capacity_bytes());
  result.capacity_bytes = memory.payload.size();
  result.fixed_length = memory.compressor->fixed_length();
  result.rounds = memory.compressor->rounds();
  return memory;
}

/// Compresses and exchanges on one rank; blocks.
inline RankResult exchange_on_rank(const ExchangeCase& c, Transport& transport) {
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  RankResult result;
  result.groups.resize(c.specs.size());
  std::vector<GroupMemory> memory;
  std::vector<GroupSlot> slots;
  SubGroups groups(transport);
  ExchangeContext made_from{
      .compressors = {}, .transport = &transport, .tag = {5, "bucket 7"}, .groups = &groups};
  std::vector<size_t> capacities;
  for (size_t g = 0; g < c.specs.size(); ++g) {
    memory.push_back(make_group(c, g, transport.rank(), result.groups[g]));
  }
  for (size_t g = 0; g < c.specs.size(); ++g) {
    GroupMemory& m = memory[g];
    const Gradient gradient{m.gradient.data(), c.numels[g], c.dtype, {}};
    m.compressor->compress(gradient, m.before, m.after, m.payload, context);
    stream->wait();
    GroupResult& group = result.groups[g];
    group.kept = m.after;
    std::memcpy(&group.payload_bytes, m.payload.data() + 24, 8);  // the header's `bytes`
    group.format = std::to_integer<uint8_t>(m.payload[5]);
    group.sent = decode(c.specs[g], c.dtype, group, m.payload, context);
    slots.push_back({m.compressor.get(), m.payload, m.after, gradient});
    made_from.compressors.push_back(m.compressor.get());
    capacities.push_back(group.capacity_bytes);
  }
  const auto exchange = make_exchange(c.exchange, made_from);
  const TrafficCounters made_with = transport.counters();  // splitting is not exchanging
  result.reencodes = exchange->reencodes();
  result.predicted_from_capacity = exchange->bytes_sent(capacities);
  exchange->run(slots, result.report, context);
  stream->wait();
  result.counters = transport.counters();
  result.counters.bytes_sent += groups.counters().bytes_sent;
  result.counters.bytes_sent -= made_with.bytes_sent;
  for (size_t g = 0; g < c.specs.size(); ++g) {
    result.groups[g].mean = memory[g].gradient;
    result.groups[g].after = memory[g].after;
    result.groups[g].after.resize(c.numels[g], 0.0f);
    result.groups[g].kept.resize(c.numels[g], 0.0f);
  }
  return result;
}

/// Rows that exchange what their callers have compressed; the others have a test file of their own.
inline std::vector<ExchangeRow> flat_exchanges() {
  std::vector<ExchangeRow> rows;
  std::ranges::copy_if(exchange_registry(), std::back_inserter(rows),
                       [](const ExchangeRow& row) { return !row.by_node; });
  return rows;
}

inline bool accepts(const ExchangeRow& exchange, const CompressorSpec& spec, DType dtype) {
  CompressorShape shape;
  shape.numel = 1;
  shape.dtype = dtype;
  return exchange.accepts(*make_compressor(spec, shape));
}

/// A spec that the exchange carries for float32 gradients: the first of fp16, bf16 and none.
inline CompressorSpec carried_spec(const ExchangeRow& exchange) {
  for (const char* text : {"fp16", "bf16"}) {
    if (accepts(exchange, parse_spec(text), DType::kFloat32)) {
      return parse_spec(text);
    }
  }
  return parse_spec("none");
}

/// Every compressor an exchange accepts for this dtype, with feedback on and off, selectors with
/// every value codec where their payloads are not those of another one.
inline std::vector<CompressorSpec> accepted_specs(const ExchangeRow& exchange, DType dtype) {
  std::vector<CompressorSpec> specs;
  for (const CompressorRow& row : compressor_registry()) {
    std::vector<CompressorSpec> variants{parse_spec(row.example)};
    if (row.shared_choice()) {  // those that add up, and those with a scale
      variants.push_back(variants[0]);
      variants.back().codec.values = ValueCodec::kInt8;
    } else if (row.selector() && !row.keeps_velocity() && row.name != "tensortopk" &&
               !row.takes_width()) {
      // else its payloads are those of topk
      for (const ValueCodec codec : {ValueCodec::kFloat32, ValueCodec::kFloat16,
                                     ValueCodec::kBFloat16, ValueCodec::kInt8, ValueCodec::kInt4,
                                     ValueCodec::kInt2, ValueCodec::kSign}) {
        variants.push_back(variants[0]);
        variants.back().codec.values = codec;
      }
      variants.push_back(variants.back());  // ternary
      variants.back().codec.values = ValueCodec::kInt2;
      variants.back().codec.rounding = Rounding::kStochastic;
      variants.erase(variants.begin());
    }
    for (CompressorSpec spec : variants) {
      for (const bool feedback : {false, true}) {
        spec.feedback.on = feedback;
        if (accepts(exchange, spec, dtype)) {
          specs.push_back(spec);
        }
      }
    }
  }
  return specs;
}

/// The most by which one re-encoding of the mean may be off where nothing puts it back: the distance of
/// two codes beside the largest mean of its block, for signs twice that mean. The bf16 scale of a chunk
/// of a selector may be rounded up by 2^-7. In an encoding of its own all that its row lets a chunk lose.
inline double quantum(const CompressorSpec& spec, std::span<const double> means, size_t i) {
  const int bits = value_bits(spec.codec.values, DType::kFloat32);
  const double most_lost = find_compressor(spec.name).most_lost;
  if (bits >= 16 && most_lost == 0) {
    return 0;
  }
  const bool selects = find_compressor(spec.name).selector();
  const size_t block = selects || most_lost > 0 ? kChunk : spec.codec.block;
  const size_t begin = i / block * block;
  double largest = 0, squares = 0;
  for (size_t j = begin; j < std::min(begin + block, means.size()); ++j) {
    largest = std::max(largest, std::abs(means[j]));
    squares += means[j] * means[j];
  }
  if (most_lost > 0) {
    return 1.001 * std::sqrt(most_lost * squares);
  }
  if (spec.codec.levels > 0) {
    return 1.001 * std::sqrt(squares) / spec.codec.levels;
  }
  const double codes = spec.codec.values == ValueCodec::kE4M3   ? 14.0  // of the largest's binade
                       : spec.codec.values == ValueCodec::kE5M2 ? 7.0
                       : spec.codec.values == ValueCodec::kPowerOfTwo ? 1.0
                       : bits == 1                                    ? 0.5
                                                                      : (1 << (bits - 1)) - 1;
  return (selects ? 1.01 : 1.001) * largest / codes;
}

}  // namespace gradwire::test
