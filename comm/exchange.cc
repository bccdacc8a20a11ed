#include "gradwire/comm/exchange.h"

#include <array>

#include "gradwire/comm/exchange/rows.h"

namespace gradwire {
namespace {

bool is_wide_dense(const CompressorSpec& spec, DType dtype) {
  return !find_compressor(spec.name).selector && value_bits(spec.values, dtype) >= 16;
}

constexpr std::array<ExchangeRow, 2> kRows{{
    {.name = "dense",
     .summary = "all-to-all of slices, owners sum in rank order, all-gather of the sums",
     .bytes_formula = "2(P-1)/P (B - 32G) + (P-1)(64G + 128)",
     .latency_formula = "2(P-1) a",
     .carries = "a dense compressor of 16 bits or wider (none, fp16, bf16)",
     .accepts =
         [](const Compressor& c) {
           return c.rounds() == 1 && is_wide_dense(c.spec(), c.shape().dtype);
         },
     .make = make_dense_exchange},
    {.name = "gather",
     .summary = "every payload to every rank, each rank sums in rank order",
     .bytes_formula = "(P-1)(B + 64)",
     .latency_formula = "(P-1) a",
     .carries = "any compressor of one round",
     .accepts = [](const Compressor& c) { return c.rounds() == 1; },
     .make = make_gather_exchange},
}};

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

std::unique_ptr<Exchange> make_exchange(std::string_view name, ExchangeContext context) {
  const ExchangeRow& row = find_exchange(name);
  check(context.transport != nullptr, "exchange '", name, "': no transport, expected one");
  check(!context.compressors.empty(), "exchange '", name,
        "': 0 compressors, expected one per group of the bucket");
  for (const Compressor* compressor : context.compressors) {
    check(row.accepts(*compressor), "exchange '", name, "': cannot carry '",
          to_string(compressor->spec()), "', expected ", row.carries);
  }
  return row.make(std::move(context));
}

std::string_view default_exchange(const CompressorSpec& spec) {
  return is_wide_dense(spec, DType::kFloat32) ? "dense" : "gather";
}

}  // namespace gradwire
