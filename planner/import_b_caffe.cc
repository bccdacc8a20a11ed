// Logs of B-Caffe.

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"
#include "gradwire/planner/importers.h"
#include "gradwire/planner/internal/table_reader.h"

namespace gradwire::planner {
namespace {

// A row of the log; the times are in microseconds.
struct Row {
  size_t numel = 0;
  double backward = 0, exchange = 0, merged = 0;
};

double time_of(std::string_view cell, std::string_view place, std::string_view what) {
  const double value = number_of(cell, place, what);
  check(std::isfinite(value) && value >= 0, place, what, ": ", text_of(value),
        " us, must be a time of at least 0 us");
  return value;
}

// What a logger puts before the row ends with its file and line: "... distributed.cpp:112] [0, ..".
std::string_view row_text(const Line& line, std::string_view place) {
  const size_t open = line.text.rfind('[');
  check(open != std::string_view::npos && line.text.back() == ']', place, "'",
        line.text.substr(0, 60), "', must end with a row [id, elements, times]");
  return line.text.substr(open + 1, line.text.size() - open - 2);
}

// Iterations, each in the order of forward.
std::vector<std::vector<Row>> iterations_of(std::string_view text, std::string_view name) {
  std::vector<std::vector<Row>> iterations;
  size_t columns = 0;
  for (const Line& line : lines_of(text)) {
    const std::string place = place_of(name, line);
    const auto cells = split(row_text(line, place), ",");
    check(cells.size() == 4 || cells.size() == 5, place, cells.size(),
          " numbers in the row, must be 4 or 5");
    check(columns == 0 || cells.size() == columns, place, cells.size(),
          " numbers in the row, must be ", columns, " as in those before it");
    columns = cells.size();
    const size_t id = count_of(cells[0], place, "id");
    if (id == 0) {
      check(iterations.size() < 2 || iterations.back().size() == iterations[0].size(), place,
            "an iteration of ", iterations.empty() ? 0 : iterations.back().size(),
            " rows ends here, must have ", iterations.empty() ? 0 : iterations[0].size());
      iterations.emplace_back();
    }
    check(!iterations.empty() && id == iterations.back().size(), place, "id: ", id, ", must be ",
          iterations.empty() ? 0 : iterations.back().size(), ": a row is missing, or out of order");
    iterations.back().push_back({count_of(cells[1], place, "elements"),
                                 time_of(cells[2], place, "backward"),
                                 time_of(cells[3], place, "exchange"),
                                 cells.size() == 5 ? time_of(cells[4], place, "merged") : 0.0});
  }
  check(!iterations.empty(), name, ": no rows, expected lines that end with [id, elements, times]");
  check(iterations.back().size() == iterations[0].size(), name, ": the last iteration has ",
        iterations.back().size(), " rows, must have ", iterations[0].size());
  return iterations;
}

}  // namespace

Profile import_b_caffe(std::string_view text, BCaffeTimes times, std::string_view name) {
  const auto iterations = iterations_of(text, name);
  const auto exchange_of = [&](const Row& row) {
    return times == BCaffeTimes::kMerged ? row.merged : row.exchange;
  };
  const auto measured =
      std::find_if(iterations.rbegin(), iterations.rend(), [&](const std::vector<Row>& rows) {
        return std::any_of(rows.begin(), rows.end(), [](const Row& r) { return r.backward > 0; }) &&
               std::any_of(rows.begin(), rows.end(),
                           [&](const Row& r) { return exchange_of(r) > 0; });
      });
  check(measured != iterations.rend(), name, ": ", iterations.size(),
        " iterations without times of backward or of the exchanges asked for, expected one with");
  Profile profile;
  profile.model = name;
  profile.source = "B-Caffe";
  const std::vector<Row>& rows = *measured;
  for (size_t i = 0; i < rows.size(); ++i) {
    LayerProfile layer;
    layer.name = concat("parameter ", i);
    layer.numel = rows[i].numel;
    // Weight and bias: the bias, first in backward, carries the time, and the weight comes with it.
    const bool counted = i + 1 < rows.size() && rows[i].backward == rows[i + 1].backward;
    layer.backward_s = counted ? 0 : rows[i].backward * 1e-6;
    if (const double exchange = exchange_of(rows[i]); exchange > 0) {
      layer.exchange_s = exchange * 1e-6;
    }
    profile.layers.push_back(std::move(layer));
  }
  validate(profile, name);
  return profile;
}

}  // namespace gradwire::planner
