#include "bench/trainer/events.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/internal/new_file.h"

namespace trainer {
namespace {

// Bytes of the well-formed UTF-8 sequence at the start of `text`, 0 if there is none (RFC 3629).
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80                     ? 1
                        : first >= 0xC2 && first < 0xE0  ? 2
                        : first >= 0xE0 && first < 0xF0  ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length > text.size()) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) {
      return 0;
    }
  }
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool surrogate = first == 0xED && byte(1) >= 0xA0;
  const bool too_large = first == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

void append_escaped(std::string& out, std::string_view value) {
  while (!value.empty()) {
    const size_t length = sequence_length(value);
    const char c = value.front();
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      out += escape.data();
    } else {
      out += value.substr(0, length);
    }
    value.remove_prefix(length == 0 ? 1 : length);
  }
}

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

void write_all(int descriptor, std::string_view text, const std::string& failure) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      throw_errno(failure);
    }
    text.remove_prefix(written < 0 ? 0 : static_cast<size_t>(written));
  }
}

void write_and_close(const std::string& path, std::string_view text) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw_errno("cannot open '" + path + "'");
  }
  const std::string failure = "cannot write to '" + path + "'";
  try {
    write_all(descriptor, text, failure);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  if (::close(descriptor) != 0) {
    throw_errno(failure);
  }
}

// Where the file is or would be: renaming over a link would replace the link.
std::string end_of_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  for (int links = 0; std::filesystem::is_symlink(path); ++links) {
    if (links == kMostLinks) {
      errno = ELOOP;
      throw_errno("cannot open '" + path.string() + "'");
    }
    path = path.parent_path() / std::filesystem::read_symlink(path);
  }
  return path.string();
}

}  // namespace

JsonLine& JsonLine::raw(std::string_view key, std::string_view value) {
  text_ += text_.size() == 1 ? "\"" : ", \"";
  append_escaped(text_, key);
  text_ += "\": ";
  text_ += value;
  return *this;
}

JsonLine& JsonLine::add(std::string_view key, std::string_view value) {
  std::string quoted = "\"";
  append_escaped(quoted, value);
  quoted += '"';
  return raw(key, quoted);
}

JsonLine& JsonLine::add(std::string_view key, double value) {
  if (!std::isfinite(value)) {
    return raw(key, "null");
  }
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return raw(key, std::string_view(digits.data(), static_cast<size_t>(end - digits.data())));
}

JsonLine& JsonLine::add(std::string_view key, const std::map<std::string, double>& numbers) {
  JsonLine object;
  for (const auto& [name, value] : numbers) {
    object.add(name, value);
  }
  return raw(key, object.text());
}

EventWriter::EventWriter(const std::string& path) : path_(path) {
  if (path == "-") {
    descriptor_ = STDOUT_FILENO;
  } else if (!path.empty()) {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) {
      throw_errno("events: cannot open '" + path + "'");
    }
  }
}

EventWriter::~EventWriter() {
  if (descriptor_ > STDERR_FILENO) {
    ::close(descriptor_);
  }
}

void EventWriter::write(const JsonLine& line) {
  if (descriptor_ < 0) {
    return;
  }
  const std::string text = line.text() + "\n";
  const std::lock_guard lock(mutex_);
  write_all(descriptor_, text, "events: cannot write to '" + path_ + "'");
}

std::string of_rank(const std::filesystem::path& file, int rank) {
  if (rank == 0) {
    return file.string();
  }
  const std::string name = gradwire::concat(file.stem().string(), ".rank", rank);
  return (file.parent_path() / name).string() + file.extension().string();
}

void write_file(const std::string& path, std::string_view text) {
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    write_and_close(path, text);  // a device or pipe takes the text itself
    return;
  }
  const std::string target = end_of_links(path);
  gradwire::NewFile file(target);
  file.write(text);
  file.replace(target);
}

}  // namespace trainer
