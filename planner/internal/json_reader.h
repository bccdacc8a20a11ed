#pragma once
// JSON read strictly: every error names the text, the place in it, the value and what was expected.

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace gradwire::planner {

using Json = nlohmann::json;

/// @throws InvalidArgument "<name>: line L, column C: ..." for what is not JSON, or an object with
/// the same key twice.
Json parse_json(std::string_view text, std::string_view name);

/// The text of a file. @throws InvalidArgument where there is none, or nothing can be read.
std::string read_text(const std::string& path);

/// A value inside a parsed text and the path that leads to it. It refers to the parsed text.
class JsonNode {
 public:
  JsonNode(const Json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  /// Of the value, as "run.json: layers[3].forward_s".
  const std::string& place() const { return place_; }
  const Json& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  /// @throws InvalidArgument unless this is an object that has no other keys than these.
  void expect_keys(std::initializer_list<std::string_view> known) const;
  bool has(std::string_view key) const;
  JsonNode at(std::string_view key) const;  ///< @throws InvalidArgument for a missing key
  std::optional<JsonNode> find(std::string_view key) const;

  size_t size() const;  ///< of an array; @throws InvalidArgument for anything else
  JsonNode operator[](size_t i) const;

  std::string text() const;
  double number() const;
  size_t count() const;  ///< a whole number of at least 0

  [[noreturn]] void fail(std::string_view expected) const;

 private:
  std::string_view joint() const;

  const Json* value_;
  std::string place_;
};

}  // namespace gradwire::planner
