#include "gradwire/planner/internal/json_reader.h"

#include <algorithm>
#include <fstream>
#include <set>
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

}  // namespace

Json parse_json(std::string_view text, std::string_view name) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto refuse_second_key = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const std::string key = value.get<std::string>();
      check(keys.back().insert(key).second, name, ": key '", key,
            "' twice in one object, expected once");
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), refuse_second_key);
  } catch (const Json::parse_error& error) {
    throw InvalidArgument(concat(name, ": ", line_and_column(text, error.byte),
                                 ": not JSON here, expected valid JSON"));
  } catch (const Json::out_of_range&) {
    throw InvalidArgument(
        concat(name, ": a number that no double holds, expected numbers up to 1.8e308"));
  }
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
