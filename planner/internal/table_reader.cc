#include "gradwire/planner/internal/table_reader.h"

#include <algorithm>
#include <charconv>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

constexpr std::string_view kSpaces = " \t\r";

template <class Number>
bool reads_whole(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  for (size_t number = 1, begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trimmed(text.substr(begin, end - begin));
    if (!line.empty() && line[0] != '#') {
      lines.push_back({line, number});
    }
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  const bool by_spaces = separators.find(' ') != std::string_view::npos;
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of(separators, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  if (by_spaces) {
    std::erase_if(parts, [](std::string_view part) { return part.empty(); });
  }
  return parts;
}

std::string place_of(std::string_view name, const Line& line) {
  return concat(name, ": line ", line.number, ": ");
}

double number_of(std::string_view text, std::string_view place, std::string_view what) {
  double value = 0;
  check(reads_whole(text, value), place, what, ": '", text, "', must be a number");
  return value;
}

size_t count_of(std::string_view text, std::string_view place, std::string_view what) {
  size_t value = 0;
  check(reads_whole(text, value), place, what, ": '", text,
        "', must be a whole number of at least 0");
  return value;
}

Table::Table(std::string_view text, std::string_view separators,
             std::initializer_list<std::string_view> required,
             std::initializer_list<std::string_view> optional, std::string_view name)
    : name_(name) {
  const std::vector<Line> lines = lines_of(text);
  check(lines.size() > 1, name, ": ", lines.size(),
        " lines with something in them, expected a line of column names and rows under it");
  columns_ = split(lines[0].text, separators);
  std::vector<std::string_view> known(required);
  known.insert(known.end(), optional.begin(), optional.end());
  const std::string place = place_of(name, lines[0]);
  for (const std::string_view column : columns_) {
    if (std::find(known.begin(), known.end(), column) == known.end()) {
      throw_unknown_name(concat(place, "column"), column, known);
    }
    check(std::count(columns_.begin(), columns_.end(), column) == 1, place, "column '", column,
          "' twice, expected once");
  }
  for (const std::string_view column : required) {
    check(has(column), place, "no column '", column, "', expected one");
  }
  for (size_t l = 1; l < lines.size(); ++l) {
    rows_.push_back({lines[l], split(lines[l].text, separators)});
    const size_t cells = rows_.back().cells.size();
    check(cells == columns_.size(), place_of(name, lines[l]), cells, " cells, must be ",
          columns_.size(), ", one per column");
  }
}

bool Table::has(std::string_view column) const {
  return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
}

std::string Table::place(size_t row) const { return place_of(name_, rows_[row].line); }

std::string_view Table::text(size_t row, std::string_view column) const {
  const auto at = std::find(columns_.begin(), columns_.end(), column);
  return rows_[row].cells[static_cast<size_t>(at - columns_.begin())];
}

double Table::number(size_t row, std::string_view column) const {
  return number_of(text(row, column), place(row), column);
}

size_t Table::count(size_t row, std::string_view column) const {
  return count_of(text(row, column), place(row), column);
}

}  // namespace gradwire::planner
