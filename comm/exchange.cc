#include "gradwire/comm/exchange.h"

#include <algorithm>
#include <array>

#include "gradwire/comm/exchange/rows.h"
#include "gradwire/kernels/core/device_name.h"

namespace gradwire {
namespace {

// Ranks send elements of their own choice, so that sums have more of them than any payload.
bool chooses_alone(const CompressorSpec& spec) {
  const CompressorRow& row = find_compressor(spec.name);
  return row.selector() && !row.shared_choice();
}

bool is_wide_dense(const CompressorSpec& spec, DType dtype) {
  return !chooses_alone(spec) && value_bits(spec.codec.values, dtype) >= 16;
}

// What sums can grow in without overflow.
bool has_range_of_float32(const Compressor& c) {
  const ValueCodec values = c.spec().codec.values;
  return values != ValueCodec::kFloat16 &&
         (values != ValueCodec::kRaw || c.shape().dtype != DType::kFloat16);
}

bool is_low_rank(const Compressor& c) { return find_compressor(c.spec().name).low_rank(); }

/// Whether payloads add up in flight: equally many floats behind each header, and nothing else.
bool is_raw_float32(const Compressor& c) {
  const ValueCodec values = c.spec().codec.values;
  const bool floats = values == ValueCodec::kFloat32 ||
                      (values == ValueCodec::kRaw && c.shape().dtype == DType::kFloat32);
  // Those of a low rank have the length of the step, the same on all ranks.
  return c.combine() == Combine::kSum && floats && (c.fixed_length() || is_low_rank(c));
}

bool everything(const CompressorSpec&) { return true; }

/// Whether a payload has values in every chunk, so that a slice needs no room for all of them.
bool fills_every_chunk(const CompressorSpec& spec) {
  const CompressorRow& row = find_compressor(spec.name);
  return !row.selector() || row.per_chunk();
}

constexpr std::string_view kAddsOtherwise =
    "transports add in an order of their own, so that means would have other bits than a CPU's";

constexpr std::string_view kCarriesSums =
    "a compressor whose float32 values add up (none, of float32 gradients, randomk and powersgd)";

constexpr std::array<ExchangeRow, 8> kRows{{
    {.name = "dense",
     .summary = "all-to-all of slices, owners sum in rank order, all-gather of the sums",
     .bytes_formula = "2(P-1)/P (B - 32G) + (P-1)(64G + 128)",
     .latency_formula = "2(P-1) a",
     .carries = "values of 16 bits or more of the same elements (none, fp16, bf16, randomk, "
                "powersgd)",
     .rank_order = true,
     .by_node = false,
     .puts_back = true,
     .complete_on_commit = true,
     .accepts = [](const Compressor& c) { return is_wide_dense(c.spec(), c.shape().dtype); },
     .make = make_dense_exchange,
     .on_gpu = everything},
    {.name = "gather",
     .summary = "every payload to every rank, each rank sums in rank order",
     .bytes_formula = "(P-1)(B + 64)",
     .latency_formula = "(P-1) a",
     .carries = "any compressor",
     .rank_order = true,
     .by_node = false,
     .puts_back = false,
     .complete_on_commit = true,
     .accepts = [](const Compressor&) { return true; },
     .make = make_gather_exchange,
     .on_gpu = everything},
    {.name = "two_shot",
     .summary = "slices to their owners, who sum in rank order and compress again, sums to all",
     .bytes_formula = "quantised: 2(P-1)/P B; topk: at most 2.25 (P-1)/P B, regions cut by entries",
     .latency_formula = "2(P-1) a",
     .carries = "any compressor; one that selects needs error feedback, because what an "
                "owner leaves out must be kept",
     .rank_order = true,
     .by_node = false,
     .puts_back = true,
     .complete_on_commit = true,
     .accepts =
         [](const Compressor& c) { return !chooses_alone(c.spec()) || c.spec().feedback.on; },
     .make = make_two_shot_exchange,
     .on_gpu = fills_every_chunk,
     .not_on_gpu = "each slice would travel with room for every entry; expected gather, or a "
                   "compressor that sends or chooses in every chunk"},
    {.name = "gtopk",
     .summary = "payloads meet in pairs along a tree, each meeting keeps the k largest sums",
     .bytes_formula = "log2 P (B + 64), a rank folded in 2B",
     .latency_formula = "log2 P a, 2 more where P is no power of two",
     .carries =
         "a compressor that selects, with error feedback, or a dense one with float32's range",
     .rank_order = false,
     .by_node = false,
     .puts_back = true,
     .complete_on_commit = false,
     .accepts =
         [](const Compressor& c) {
           return chooses_alone(c.spec())
                      ? c.spec().feedback.on
                      : is_wide_dense(c.spec(), c.shape().dtype) && has_range_of_float32(c);
         },
     .make = make_gtopk_exchange,
     .not_on_gpu = "the host reads what a meeting left before the next begins"},
    {.name = "sum",
     .summary = "values add up in one all-reduce: all-to-all, sums in rank order, all-gather",
     .bytes_formula = "2(P-1)/P (B - 32 + 4P) + 128(P-1)",
     .latency_formula = "2(P-1) a",
     .carries = kCarriesSums,
     .rank_order = true,
     .by_node = false,
     .puts_back = false,
     .complete_on_commit = true,
     .accepts = is_raw_float32,
     .make =
         [](ExchangeContext c) { return make_sum_exchange(std::move(c), AllReduce::kRankOrder); },
     .not_on_gpu = kAddsOtherwise},
    {.name = "ring",
     .summary = "the same around a ring: one sender per receiver, sums in the order of the ring",
     .bytes_formula = "2(P-1)/P (B - 32 + 4P) + 128(P-1), 4 more a chunk",
     .latency_formula = "2(P-1) a",
     .carries = kCarriesSums,
     .rank_order = false,
     .by_node = false,
     .puts_back = false,
     .complete_on_commit = true,
     .accepts = is_raw_float32,
     .make = [](ExchangeContext c) { return make_sum_exchange(std::move(c), AllReduce::kRing); },
     .not_on_gpu = kAddsOtherwise,
     .sums_in_any_order = true},
    {.name = "rabenseifner",
     .summary = "the same by recursive halving and doubling: few steps, pairwise sums",
     .bytes_formula =
         "2(P-1)/P (B - 32 + 4P) + 128 log2 P; P no power of two: up to 4n more; 4 more a chunk",
     .latency_formula = "2 log2 P a",
     .carries = kCarriesSums,
     .rank_order = false,
     .by_node = false,
     .puts_back = false,
     .complete_on_commit = true,
     .accepts = is_raw_float32,
     .make =
         [](ExchangeContext c) {
           return make_sum_exchange(std::move(c), AllReduce::kRabenseifner);
         },
     .not_on_gpu = kAddsOtherwise,
     .sums_in_any_order = true},
    {.name = "hierarchical",
     .summary = "sums within nodes, compressed shares between nodes, means within nodes",
     .bytes_formula = "2(L-1)/L 4n within nodes of L ranks; between nodes 1/L of their exchange's",
     .latency_formula = "2(L-1) a within, and the exchange's between nodes",
     .carries = "any compressor without ef21, and not powersgd, since nodes share out "
                "parts of matrices",
     .rank_order = false,
     .by_node = true,
     .puts_back = true,
     .complete_on_commit = true,
     .accepts = [](const Compressor& c) { return !c.spec().feedback.ef21 && !is_low_rank(c); },
     .make = make_hierarchical_exchange,
     .not_on_gpu = kAddsOtherwise},
}};

std::string names_on_gpu() {
  std::string names;
  for (const ExchangeRow& row : kRows) {
    if (row.on_gpu != nullptr) {
      names += concat(names.empty() ? "" : ", ", row.name);
    }
  }
  return names;
}

}  // namespace

std::span<const ExchangeRow> exchange_registry() { return kRows; }

const ExchangeRow& find_exchange(std::string_view name) {
  std::vector<std::string_view> known;
  for (const ExchangeRow& row : kRows) {
    if (row.name == name) {
      return row;
    }
    known.push_back(row.name);
  }
  throw_unknown_name("exchange", name, known);
}

bool carries(const ExchangeRow& row, const Compressor& compressor, DeviceType device) {
  const bool there = row.on_gpu != nullptr && row.on_gpu(compressor.spec());
  return row.accepts(compressor) && (device == DeviceType::kCpu || there);
}

std::unique_ptr<Exchange> make_exchange(std::string_view name, ExchangeContext context) {
  const ExchangeRow& row = find_exchange(name);
  check(context.transport != nullptr, "exchange '", name, "': no transport, expected one");
  check(!context.compressors.empty(), "exchange '", name,
        "': 0 compressors, expected one per group of the bucket");
  for (const Compressor* compressor : context.compressors) {
    check(row.accepts(*compressor), "exchange '", name, "': cannot carry '",
          to_string(compressor->spec()), "', expected ", row.carries);
  }
  check(!row.by_node || context.group_numels.size() == context.compressors.size(), "exchange '",
        name, "': ", context.group_numels.size(),
        " group_numels, expected one per group of the bucket");
  const bool twice = std::ranges::any_of(
      context.compressors, [](const Compressor* compressor) { return compressor->rounds() == 2; });
  const Device device = context.transport->traits().device;
  for (const Compressor* compressor : context.compressors) {
    check(compressor->shape().device == device, "exchange '", name, "': a compressor is of ",
          name_of(compressor->shape().device), ", expected ", name_of(device),
          " as the transport is");
  }
  if (device.type != DeviceType::kCpu) {
    check(row.on_gpu != nullptr, "exchange '", name, "': is not there on a GPU, where ",
          row.not_on_gpu, "; expected ", names_on_gpu());
    for (const Compressor* compressor : context.compressors) {
      check(row.on_gpu(compressor->spec()), "exchange '", name, "': cannot carry '",
            to_string(compressor->spec()), "' on a GPU, where ", row.not_on_gpu);
    }
  }
  return twice ? make_two_round_exchange(std::move(context), row.make)
               : row.make(std::move(context));
}

Region node_share(size_t numel, int rank, int ranks_per_node) {
  const int place = rank % ranks_per_node;
  return {shard_begin(numel, ranks_per_node, place), shard_begin(numel, ranks_per_node, place + 1)};
}

std::string_view default_exchange(const CompressorSpec& spec) {
  return is_wide_dense(spec, DType::kFloat32) ? "dense" : "gather";
}

}  // namespace gradwire
