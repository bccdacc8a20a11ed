#pragma once
// How many bytes exchanges send of selectors' payloads, followed from what every rank's payload
// decodes to: the definition of each exchange, worked out for all ranks at once. Codecs that round
// values to 0 are left out: their entries are more than the elements that are not 0.

#include <numeric>
#include <optional>
#include <utility>

#include "tests/comm/exchange_bytes.h"

namespace gradwire::test {

using Bounds = std::vector<std::pair<size_t, size_t>>;  ///< [begin, end) of each rank's elements

inline size_t entries_in(std::span<const float> values) {
  return values.size() - static_cast<size_t>(std::ranges::count(values, 0.0f));
}

/// Of values that are neither 0 nor far below the others.
constexpr ValueCodec kNeverZero[] = {ValueCodec::kFloat32, ValueCodec::kFloat16,
                                     ValueCodec::kBFloat16, ValueCodec::kSign};

/// Whole chunks, as evenly as they allow.
inline Bounds even_regions(size_t numel, int world_size) {
  Bounds regions;
  size_t begin = 0;
  for (int r = 0; r < world_size; ++r) {
    const size_t end = begin + owned_elements(numel, world_size, r);
    regions.push_back({begin, end});
    begin = end;
  }
  return regions;
}

/// Each chunk goes to the rank in whose share of all entries its middle lies.
inline Bounds balanced_regions_of(const ExchangeCase& c, const std::vector<RankResult>& results,
                                  size_t g) {
  const size_t numel = c.numels[g], chunks = (numel + 4095) / 4096;
  std::vector<double> middle(chunks);
  double total = 0;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    double entries = 0;
    for (const RankResult& result : results) {
      entries += static_cast<double>(
          entries_in(std::span(result.groups[g].sent)
                         .subspan(chunk * 4096, std::min<size_t>(4096, numel - chunk * 4096))));
    }
    middle[chunk] = total + entries / 2;
    total += entries;
  }
  Bounds regions;
  for (int r = 0; r < c.world_size; ++r) {
    const auto upto = [&](int rank) {
      const auto inside = std::ranges::count_if(
          middle, [&](double at) { return at <= total * rank / c.world_size; });
      return rank == c.world_size ? numel : std::min(numel, static_cast<size_t>(inside) * 4096);
    };
    regions.push_back({r == 0 ? 0 : upto(r), upto(r + 1)});
  }
  return regions;
}

/// Slices to their owners and what these make of them to all.
/// Nothing where a slice had no room for all its entries: what it leaves out is its sender's
/// choice.
inline std::optional<uint64_t> two_shot_bytes(const ExchangeCase& c,
                                              const std::vector<RankResult>& results, size_t r) {
  const auto ranks = static_cast<size_t>(c.world_size);
  uint64_t bytes = (ranks - 1) * (64 + 64);  // a frame of slices, a frame of merged payloads
  size_t counted = 0;                        // chunks whose entries are summed over the ranks
  for (size_t g = 0; g < c.specs.size(); ++g) {
    const CompressorSpec& spec = c.specs[g];
    const size_t numel = c.numels[g];
    if (!chooses_alone(spec)) {
      for (size_t d = 0; d < ranks; ++d) {
        const auto of_rank = [&](size_t owner) {
          return payload_bytes(spec, c.dtype,
                               owned_elements(numel, c.world_size, static_cast<int>(owner)));
        };
        bytes += d == r ? 0 : of_rank(d) + of_rank(r);
      }
      continue;
    }
    const bool among_all = spec.name == "topk" || spec.name == "threshold" || spec.name == "dgc";
    const bool rounds_to_zero = std::ranges::count(kNeverZero, spec.codec.values) == 0;
    if (rounds_to_zero || c.dtype == DType::kFloat16) {
      return std::nullopt;
    }
    const Bounds regions =
        among_all ? balanced_regions_of(c, results, g) : even_regions(numel, c.world_size);
    counted += among_all ? (numel + 4095) / 4096 : 0;
    const auto length = [&](const std::vector<float>& values, size_t region) {
      const auto [begin, end] = regions[region];
      return begin == end
                 ? 32
                 : sparse_payload_bytes(spec, numel, std::span(values).subspan(begin, end - begin));
    };
    std::vector<float> mean(numel);
    for (size_t i = 0; i < numel; ++i) {
      mean[i] = results[r].groups[g].mean_at(i, c.dtype);
    }
    const size_t room = among_all ? (2 * most_entries(spec, numel) + ranks - 1) / ranks : numel;
    for (size_t d = 0; d < ranks; ++d) {
      for (const RankResult& any : results) {
        const auto [begin, end] = regions[d];
        if (entries_in(std::span(any.groups[g].sent).subspan(begin, end - begin)) > room) {
          return std::nullopt;
        }
      }
      bytes += d == r ? 0 : length(results[r].groups[g].sent, d) + length(mean, r);
    }
  }
  const auto shard = [&](size_t owner) {
    return counted / ranks + (owner % ranks < counted % ranks ? 1 : 0);
  };
  for (size_t step = 1; counted > 0 && step < ranks; ++step) {
    bytes += 64 + 4 * shard(r + step) + 64 + 4 * shard(r);
  }
  return bytes;
}

/// What two ranks' messages become where they meet: the sums, the k largest of them.
inline std::vector<float> meet(const CompressorSpec& spec, std::vector<float> low,
                               const std::vector<float>& high) {
  for (size_t i = 0; i < low.size(); ++i) {
    low[i] += high[i];
  }
  const size_t k = most_entries(spec, low.size());
  std::vector<size_t> order(low.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return std::abs(low[a]) > std::abs(low[b]); });
  for (size_t place = k; place < order.size(); ++place) {
    low[order[place]] = 0;
  }
  return low;
}

/// The k largest of pairs of ranks, of pairs of pairs, ...; ranks beyond a power of two hand theirs
/// to one below it and are handed the end. A message is a frame of 64 bytes, payloads, 4 bytes.
inline std::optional<uint64_t> gtopk_bytes(const ExchangeCase& c,
                                           const std::vector<RankResult>& results, size_t r) {
  size_t power = 1;
  while (2 * power <= results.size()) {
    power *= 2;
  }
  uint64_t frames = 0, bytes = 0;
  for (size_t g = 0; g < c.specs.size(); ++g) {
    const CompressorSpec& spec = c.specs[g];
    if ((spec.name != "topk" && spec.name != "dgc") || spec.codec.values != ValueCodec::kFloat32) {
      return std::nullopt;
    }
    std::vector<std::vector<float>> held;
    for (const RankResult& result : results) {
      held.push_back(result.groups[g].sent);
    }
    frames = 0;
    const auto message = [&](const std::vector<float>& values) {
      ++frames;
      bytes += sparse_payload_bytes(spec, values.size(), values);
    };
    if (r >= power) {
      message(held[r]);
    }
    for (size_t high = power; high < held.size(); ++high) {
      held[high - power] = meet(spec, held[high - power], held[high]);
    }
    for (size_t distance = 1; distance < power; distance *= 2) {
      if (r < power) {
        message(held[r]);
      }
      auto next = held;
      for (size_t rank = 0; rank < power; ++rank) {
        next[rank] = meet(spec, held[rank & ~distance], held[rank | distance]);
      }
      held = std::move(next);
    }
    if (r < power && r + power < results.size()) {
      message(held[r]);
    }
  }
  const bool in_fold = r >= power || r + power < results.size();
  return bytes + frames * (64 + 4) + (in_fold ? 64 : 0);  // the other way of folding: a frame alone
}

/// Bytes rank r must send where they follow, else nothing.
inline std::optional<uint64_t> stated_bytes(const ExchangeCase& c,
                                            const std::vector<RankResult>& results, int r) {
  const auto rank = static_cast<size_t>(r);
  if (c.exchange == "gtopk") {
    return gtopk_bytes(c, results, rank);
  }
  const bool slices = c.exchange == "two_shot" || c.exchange == "dense";
  return slices ? two_shot_bytes(c, results, rank) : expected_bytes(c, results[rank], r);
}

}  // namespace gradwire::test
