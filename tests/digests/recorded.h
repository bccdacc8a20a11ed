#pragma once
// Digests that were recorded, and how they are taken.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "gradwire/comm/internal/digest.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire::digests {

inline std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// A chain of SHA-256 over named parts: each part counts with its name and its length.
class Hash {
 public:
  void add(const std::string& name, std::span<const std::byte> bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (kPrintsParts) {
      std::cout << "  " << name << " [" << bytes.size() << "] " << to_hex(sha256(text), 8) << "\n";
    }
    digest_ = sha256(concat(to_hex(digest_), " ", name, " ", bytes.size(), ":", text));
  }
  void add(const std::string& name, const std::string& text) {
    add(name, std::as_bytes(std::span(text)));
  }
  template <class T>
  void add(const std::string& name, const std::vector<T>& values) {
    add(name, std::as_bytes(std::span(values)));
  }
  /// The first 16 hexadecimal digits.
  std::string text() const { return to_hex(digest_, 8); }

 private:
  static inline const bool kPrintsParts = !variable("GRADWIRE_DIGEST_PARTS").empty();

  Digest digest_ = sha256("");
};

using Columns = std::vector<std::string>;

/// A file of rows: "name | column column ...". Lines that begin with # are comments.
class Recorded {
 public:
  explicit Recorded(const std::string& file)
      : path_(concat(GRADWIRE_DIGESTS_DIR, "/", file)),
        records_(!variable("GRADWIRE_DIGEST_RECORD").empty()) {
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) {
      const size_t bar = line.rfind(" | ");
      if (line.starts_with('#') || bar == std::string::npos) {
        continue;
      }
      std::istringstream columns(line.substr(bar + 3));
      Columns& row = rows_[line.substr(0, bar)];
      for (std::string column; columns >> column;) {
        row.push_back(column);
      }
    }
  }

  /// Null: there is no such row.
  const Columns* find(const std::string& name) const {
    const auto found = rows_.find(name);
    return found == rows_.end() ? nullptr : &found->second;
  }

  /// Compares with what was recorded, or keeps it for write().
  void expect(const std::string& name, const Columns& columns, const std::string& what) {
    if (records_) {
      written_.push_back(name);
      now_[name] = columns;
      return;
    }
    const auto found = rows_.find(name);
    ASSERT_NE(found, rows_.end()) << name << " has no row in " << path_;
    ASSERT_EQ(columns.size(), found->second.size()) << name << " in " << path_;
    for (size_t i = 0; i < columns.size(); ++i) {
      // "-": not computed here
      EXPECT_TRUE(columns[i] == "-" || columns[i] == found->second[i])
          << name << " on " << what << ", column " << i << ": " << columns[i] << ", recorded "
          << found->second[i];
    }
  }

  /// The rows of the file are these and no others.
  void expect_rows(const std::vector<std::string>& names) const {
    if (records_) {
      return;
    }
    std::vector<std::string> recorded, now = names;
    for (const auto& [name, columns] : rows_) {
      recorded.push_back(name);
    }
    std::ranges::sort(now);
    EXPECT_EQ(now, recorded) << path_;
  }

  void write(const std::string& head) const {
    if (!records_) {
      return;
    }
    std::ofstream out(path_);
    out << head;
    for (const std::string& name : written_) {
      out << name << " |";
      for (const std::string& column : now_.at(name)) {
        out << " " << column;
      }
      out << "\n";
    }
  }

 private:
  std::string path_;
  bool records_;
  std::map<std::string, Columns> rows_, now_;
  std::vector<std::string> written_;
};

/// Of the rows some, drawn by GRADWIRE_TEST_SEED, in their order: `count` of them, all in a soak and
/// while recording, or those named by GRADWIRE_DIGEST_ROW.
inline std::vector<std::string> drawn(const std::vector<std::string>& names, size_t count) {
  const std::string row = variable("GRADWIRE_DIGEST_ROW"), seed = variable("GRADWIRE_TEST_SEED");
  std::vector<std::string> chosen;
  if (!row.empty()) {
    std::ranges::copy_if(names, std::back_inserter(chosen), [&](const std::string& name) {
      return name == row || name.starts_with(row + " ");
    });
    return chosen;
  }
  if (!variable("GRADWIRE_SOAK").empty() || !variable("GRADWIRE_DIGEST_RECORD").empty()) {
    return names;
  }
  const uint64_t number = seed.empty() ? 20261127 : std::strtoull(seed.c_str(), nullptr, 10);
  std::mt19937_64 random(number);
  std::ranges::sample(names, std::back_inserter(chosen), static_cast<std::ptrdiff_t>(count),
                      random);
  std::cout << chosen.size() << " of " << names.size() << " rows, seed " << number
            << " (GRADWIRE_TEST_SEED); ./run.sh soak computes all\n";
  return chosen;
}

}  // namespace gradwire::digests
