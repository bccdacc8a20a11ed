#include "gradwire/planner/internal/collectives.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

// As c10::toString() writes types.
DType dtype_of(const JsonNode& node) {
  constexpr std::string_view kKnown[] = {"Float", "Half", "BFloat16"};  // in the order of DType
  const std::string text = node.text();
  const auto found = std::find(std::begin(kKnown), std::end(kKnown), text);
  if (found == std::end(kKnown)) {
    throw_unknown_name(node.place(), text, kKnown);
  }
  return static_cast<DType>(found - std::begin(kKnown));
}

// Counts and flags, which DDP sums beside gradients.
bool is_whole_number(std::string_view type) {
  constexpr std::string_view kKnown[] = {"Long", "Int", "Short", "Char", "Byte", "Bool"};
  return std::find(std::begin(kKnown), std::end(kKnown), type) != std::end(kKnown);
}

// As C++ names them: float, c10::Half. Lists of tensors say no type in older traces.
std::optional<DType> dtype_in(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, DType>, 3> kKnown = {
      {{"BFloat16", DType::kBFloat16}, {"Half", DType::kFloat16}, {"float", DType::kFloat32}}};
  for (const auto& [name, dtype] : kKnown) {
    if (text.find(name) != std::string_view::npos) {
      return dtype;
    }
  }
  return std::nullopt;
}

// Of a shape the product, of a list of shapes the sum; 0 where there is none.
size_t elements_in(const JsonNode& dims) {
  size_t product = 1, sum = 0;
  bool shape = false;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].value().is_array()) {
      sum += elements_in(dims[i]);
    } else {
      shape = true;
      product *= dims[i].count();
    }
  }
  return shape ? product : sum;
}

}  // namespace

bool sums_whole_numbers(const JsonNode& args, std::string_view kernel) {
  if (const auto dtype = args.find("dtype")) {
    return dtype->value().is_string() && is_whole_number(dtype->text());
  }
  constexpr std::string_view kKnown[] = {"_int", "_uint", "_i8",  "_i32",
                                         "_i64", "_u8",   "_u32", "_u64"};
  return std::ranges::any_of(
      kKnown, [&](std::string_view part) { return kernel.find(part) != std::string_view::npos; });
}

std::optional<CollectiveSize> collective_size(const JsonNode& args) {
  if (const auto numel = args.find("In msg nelems")) {
    const auto dtype = args.find("dtype");
    return CollectiveSize{numel->count(), dtype ? std::optional(dtype_of(*dtype)) : std::nullopt};
  }
  const auto dims = args.find("Input Dims");
  if (!dims || !dims->value().is_array() || dims->size() == 0 || !(*dims)[0].value().is_array()) {
    return std::nullopt;
  }
  const size_t numel = elements_in((*dims)[0]);
  if (numel == 0) {
    return std::nullopt;
  }
  const auto types = args.find("Input type");
  const bool typed = types && types->value().is_array() && types->size() > 0;
  return CollectiveSize{numel, typed ? dtype_in((*types)[0].text()) : std::nullopt};
}

std::optional<CollectiveSize> collective_size(std::string_view shapes, std::string_view types,
                                              std::string_view place) {
  if (!shapes.starts_with('[')) {
    return std::nullopt;
  }
  const Json parsed = parse_json(shapes, place);
  if (parsed.empty() || !parsed[0].is_array()) {
    return std::nullopt;
  }
  const size_t numel = elements_in(JsonNode(parsed[0], std::string(place)));
  if (numel == 0) {
    return std::nullopt;
  }
  return CollectiveSize{numel, dtype_in(types.substr(0, types.find(',')))};
}

std::optional<DType> dtype_in_kernel_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, DType>, 7> kKnown = {
      {{"bfloat16", DType::kBFloat16},
       {"_bf16", DType::kBFloat16},
       {"_half", DType::kFloat16},
       {"_f16", DType::kFloat16},
       {"_fp16", DType::kFloat16},
       {"_float", DType::kFloat32},
       {"_f32", DType::kFloat32}}};
  for (const auto& [part, dtype] : kKnown) {
    if (name.find(part) != std::string_view::npos) {
      return dtype;
    }
  }
  return std::nullopt;
}

}  // namespace gradwire::planner
