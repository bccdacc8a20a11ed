// The columns of the S-SGD traces, both ways, and tables of layers.

#include <cmath>
#include <cstdio>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"
#include "gradwire/planner/importers.h"
#include "gradwire/planner/internal/table_reader.h"

namespace gradwire::planner {
namespace {

constexpr double kMicrosecond = 1e-6;

// The one of the separators that the first line uses: names may hold the others.
std::string_view separator_of(std::string_view text) {
  const std::vector<Line> lines = lines_of(text);
  const std::string_view first = lines.empty() ? std::string_view() : lines[0].text;
  for (const std::string_view separator : {"\t", ","}) {
    if (first.find(separator) != std::string_view::npos) {
      return separator;
    }
  }
  return " ";
}

// Twelve digits: what was read from a file is written as it stood there.
std::string microseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.12g", seconds / kMicrosecond);
  return text;
}

double time_of(const Table& table, size_t row, std::string_view column) {
  const double value = table.number(row, column);
  check(std::isfinite(value) && value >= 0, table.place(row), column, ": ", text_of(value),
        " us, must be a time of at least 0 us");
  return value * kMicrosecond;
}

}  // namespace

Profile import_columns(std::string_view text, std::string_view name) {
  const Table table(text, separator_of(text), {"Id", "Name", "Forward", "Backward", "Comm", "Size"},
                    {}, name);
  Profile profile;
  profile.model = name;
  for (size_t row = 0; row < table.rows(); ++row) {
    const size_t id = table.count(row, "Id");
    check(id == row, table.place(row), "Id: ", id, ", must be ", row,
          ": a layer is missing, or out of order");
    const size_t bytes = table.count(row, "Size");
    check(bytes % 4 == 0, table.place(row), "Size: ", bytes,
          " bytes, must be a multiple of 4, of a float32 gradient");
    LayerProfile layer;
    layer.name = table.text(row, "Name");
    layer.numel = bytes / 4;
    layer.forward_s = time_of(table, row, "Forward");
    layer.backward_s = time_of(table, row, "Backward");
    if (const double comm = time_of(table, row, "Comm"); comm > 0) {
      check(layer.numel > 0, table.place(row), "Comm: ", text_of(comm / kMicrosecond),
            " us of 0 bytes, must be 0");
      layer.exchange_s = comm;
    }
    profile.layers.push_back(std::move(layer));
  }
  validate(profile, name);
  return profile;
}

std::string to_columns(const Profile& profile) {
  std::string text = "Id\tName\tForward\tBackward\tComm\tSize\n";
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const LayerProfile& layer = profile.layers[l];
    check(layer.name.find_first_of("\t\r\n") == std::string::npos, "to_columns: layer ", l, " '",
          layer.name, "', must have a name without tabs and line ends");
    text += concat(l, '\t', layer.name, '\t', microseconds(layer.forward_s), '\t',
                   microseconds(layer.backward_s), '\t', microseconds(layer.exchange_s.value_or(0)),
                   '\t', layer.numel * 4, '\n');
  }
  return text;
}

Profile import_layers(std::string_view csv, const TableOptions& options, std::string_view name) {
  check(std::isfinite(options.flops_per_s) && options.flops_per_s > 0, name,
        ": flops_per_s: ", text_of(options.flops_per_s), ", must be above 0");
  check(options.flops_per_s >= 1e6 && options.flops_per_s <= 1e18, name,
        ": flops_per_s: ", text_of(options.flops_per_s),
        ", must be in [1e6, 1e18] operations per second; was it written in GFLOP/s or TFLOP/s?");
  check(options.backward_ratio > 0 && options.backward_ratio <= 10, name,
        ": backward_ratio: ", text_of(options.backward_ratio), ", must be in (0, 10]");
  const Table table(csv, ",", {"tensor", "elements"}, {"forward_order", "flops"}, name);
  check(table.has("flops") || options.flops_per_element > 0, name,
        ": no column 'flops' and flops_per_element is ", text_of(options.flops_per_element),
        ", expected one of them: how much work is a layer?");
  Profile profile;
  profile.model = name;
  profile.batch = options.batch;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (table.has("forward_order")) {
      const size_t order = table.count(row, "forward_order");
      check(order == row, table.place(row), "forward_order: ", order, ", must be ", row,
            ": a layer is missing, or out of order");
    }
    LayerProfile layer;
    layer.name = table.text(row, "tensor");
    layer.numel = table.count(row, "elements");
    const double flops = table.has("flops")
                             ? table.number(row, "flops")
                             : options.flops_per_element * static_cast<double>(layer.numel);
    check(std::isfinite(flops) && flops >= 0, table.place(row), "flops: ", text_of(flops),
          ", must be at least 0");
    layer.forward_s = flops * static_cast<double>(options.batch) / options.flops_per_s;
    layer.backward_s = layer.forward_s * options.backward_ratio;
    profile.layers.push_back(std::move(layer));
  }
  validate(profile, name);
  return profile;
}

}  // namespace gradwire::planner
