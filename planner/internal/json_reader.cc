#include "gradwire/planner/internal/json_reader.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

// What a message shows of a value.
std::string shown(const Json& value) {
  constexpr size_t kMost = 60;
  if (value.is_object() || value.is_array()) {
    return concat(value.is_object() ? "an object of " : "an array of ", value.size());
  }
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

std::string line_and_column(std::string_view text, size_t byte) {
  // The parser counts bytes from 1 and names the last one it read.
  const size_t end = std::min(text.size(), byte == 0 ? 0 : byte - 1);
  size_t line = 1, begin = 0;
  for (size_t i = 0; i < end; ++i) {
    if (text[i] == '\n') {
      ++line;
      begin = i + 1;
    }
  }
  return concat("line ", line, ", column ", end - begin + 1);
}

// Deeper than any file that is read here, and far from where recursion ends the process.
constexpr size_t kDeepest = 100;

// Builds the value as the text is read. The library's own parser with a callback looks through the
// whole of an array for each object that ends in it; this one looks at nothing twice.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, std::string_view name, Json& whole)
      : text_(text), name_(name), whole_(&whole) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    const auto [at, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(key);
    check(is_new, name_, ": key '", key, "' twice in one object, expected once");
    member_ = &at->second;
    return true;
  }

  bool parse_error(size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (dynamic_cast<const Json::out_of_range*>(&error) != nullptr) {
      throw InvalidArgument(
          concat(name_, ": a number that no double holds, expected numbers up to 1.8e308"));
    }
    throw InvalidArgument(
        concat(name_, ": ", line_and_column(text_, byte), ": not JSON here, expected valid JSON"));
  }

 private:
  template <class Value>
  bool add(Value&& value) {
    place() = std::forward<Value>(value);
    return true;
  }

  // Where the next value goes.
  Json& place() {
    if (open_.empty()) {
      return *whole_;
    }
    return open_.back()->is_array() ? open_.back()->get_ref<Json::array_t&>().emplace_back()
                                    : *member_;
  }

  bool open(Json empty) {
    check(open_.size() < kDeepest, name_, ": nested more than ", kDeepest,
          " deep, expected less in a file of this kind");
    Json& value = place();
    value = std::move(empty);
    open_.push_back(&value);  // it stays where it is: nothing is added beside it while it is open
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_, name_;
  Json* whole_;
  Json* member_ = nullptr;  // of the innermost object: the value of the key that was read last
  std::vector<Json*> open_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view name) {
  Json whole;
  Builder builder(text, name, whole);
  Json::sax_parse(text.begin(), text.end(), &builder);  // what is wrong, the builder throws
  return whole;
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  check(in.is_open(), path, ": cannot be opened, expected a readable file");
  std::ostringstream text;
  text << in.rdbuf();
  check(!in.bad() && !text.fail() && text.tellp() > 0, path,
        ": nothing could be read, expected a file with text");
  return std::move(text).str();
}

// Between the place and what is said about it; the whole text's ends with it already.
std::string_view JsonNode::joint() const { return place_.ends_with(": ") ? "" : ": "; }

void JsonNode::expect_keys(std::initializer_list<std::string_view> known) const {
  if (!value_->is_object()) {
    fail("must be an object");
  }
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw_unknown_name(concat(place_, joint(), "key"), key, {known.begin(), known.size()});
    }
  }
}

bool JsonNode::has(std::string_view key) const {
  return value_->is_object() && value_->contains(key);
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (!has(key)) {
    return std::nullopt;
  }
  return JsonNode((*value_)[std::string(key)],
                  concat(place_, place_.ends_with(": ") ? "" : ".", key));
}

JsonNode JsonNode::at(std::string_view key) const {
  if (!value_->is_object()) {
    fail("must be an object");
  }
  const std::optional<JsonNode> found = find(key);
  check(found.has_value(), place_, joint(), "no key '", key, "', expected one");
  return *found;
}

size_t JsonNode::size() const {
  if (!value_->is_array()) {
    fail("must be an array");
  }
  return value_->size();
}

JsonNode JsonNode::operator[](size_t i) const {
  return JsonNode((*value_)[i], concat(place_, "[", i, "]"));
}

std::string JsonNode::text() const {
  if (!value_->is_string()) {
    fail("must be a string");
  }
  return value_->get<std::string>();
}

double JsonNode::number() const {
  if (!value_->is_number()) {
    fail("must be a number");
  }
  return value_->get<double>();
}

size_t JsonNode::count() const {
  if (!value_->is_number_unsigned()) {
    fail("must be a whole number of at least 0");
  }
  return value_->get<size_t>();
}

void JsonNode::fail(std::string_view expected) const {
  throw InvalidArgument(concat(place_, joint(), shown(*value_), ", ", expected));
}

}  // namespace gradwire::planner
