#pragma once
// The trainer's output: JSON objects, one per line, each written whole.

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace trainer {

/// Builds one JSON object, fields in the order added.
class JsonLine {
 public:
  explicit JsonLine(std::string_view event) { add("event", event); }

  /// Escaped; bytes that are not UTF-8 become U+FFFD.
  JsonLine& add(std::string_view key, std::string_view value);
  JsonLine& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  JsonLine& add(std::string_view key, const std::string& value) {
    return add(key, std::string_view(value));
  }
  /// The shortest text that reads back as the same double; null unless finite.
  JsonLine& add(std::string_view key, double value);
  JsonLine& add(std::string_view key, std::same_as<bool> auto value) {
    return raw(key, value ? "true" : "false");
  }
  JsonLine& add(std::string_view key,
                std::integral auto value) requires(!std::same_as<decltype(value), bool>) {
    return raw(key, std::to_string(value));
  }
  /// null when empty.
  template <class T>
  JsonLine& add(std::string_view key, const std::optional<T>& value) {
    return value.has_value() ? add(key, *value) : raw(key, "null");
  }

  /// `json` is the text of a JSON value, taken as it is.
  JsonLine& add_json(std::string_view key, std::string_view json) { return raw(key, json); }
  /// An object of such numbers.
  JsonLine& add(std::string_view key, const std::map<std::string, double>& numbers);

  /// The object, without a newline.
  std::string text() const { return text_ + "}"; }

 private:
  JsonLine() = default;  // of no event
  JsonLine& raw(std::string_view key, std::string_view value);
  std::string text_ = "{";
};

/// Writes lines to a file or to standard output ("-"). Thread-safe: the ranks of one process share
/// it.
class EventWriter {
 public:
  /// An empty path writes nothing. @throws std::system_error naming the path.
  explicit EventWriter(const std::string& path);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// @throws std::system_error when the line cannot be written.
  void write(const JsonLine& line);

 private:
  std::string path_;
  int descriptor_ = -1;
  std::mutex mutex_;
};

/// Rank 0's file as it was named, "trace.rank2.json" beside it.
std::string of_rank(const std::filesystem::path& file, int rank);

/// Writes a whole file or nothing: a temporary beside it, then a rename. Symbolic links are
/// followed; what exists and is no regular file (a device, a pipe) is written to directly.
/// @throws std::system_error naming the path.
void write_file(const std::string& path, std::string_view text);

}  // namespace trainer
