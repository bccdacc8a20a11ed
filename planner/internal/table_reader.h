#pragma once
// Text in lines and columns, read strictly.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::planner {

/// A line without its end, and its number counted from 1.
struct Line {
  std::string_view text;
  size_t number = 0;
};

/// Lines with something in them that do not begin with #.
std::vector<Line> lines_of(std::string_view text);

/// The parts between separators; spaces around them are cut off. Of `separators`, a space stands
/// for any run of spaces.
std::vector<std::string_view> split(std::string_view text, std::string_view separators);

std::string_view trimmed(std::string_view text);

/// "log: line 7: "
std::string place_of(std::string_view name, const Line& line);

/// @throws InvalidArgument with `place` and `what` in front for anything that is not a number.
double number_of(std::string_view text, std::string_view place, std::string_view what);
size_t count_of(std::string_view text, std::string_view place, std::string_view what);

/// A table under a line that names its columns.
class Table {
 public:
  /// @throws InvalidArgument for a column that is missing, unknown or there twice, for rows of
  /// another length, and for no rows.
  Table(std::string_view text, std::string_view separators,
        std::initializer_list<std::string_view> required,
        std::initializer_list<std::string_view> optional, std::string_view name);

  size_t rows() const { return rows_.size(); }
  bool has(std::string_view column) const;
  std::string place(size_t row) const;  ///< "table: line 7: "
  std::string_view text(size_t row, std::string_view column) const;
  double number(size_t row, std::string_view column) const;
  size_t count(size_t row, std::string_view column) const;

 private:
  std::string name_;
  std::vector<std::string_view> columns_;
  struct Row {
    Line line;
    std::vector<std::string_view> cells;
  };
  std::vector<Row> rows_;
};

}  // namespace gradwire::planner
