#pragma once
// IDX files for tests, written byte by byte, and a folder that goes away with the test.

#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace idx_files {

using Bytes = std::vector<uint8_t>;

class Folder : public gradwire::test_support::TemporaryFolder {
 public:
  void write(const std::string& name, const Bytes& bytes) const {
    std::ofstream out(file(name), std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  }
};

inline Bytes images(uint8_t count, uint8_t rows, uint8_t columns, const Bytes& pixels) {
  Bytes out = {0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, rows, 0, 0, 0, columns};
  out.insert(out.end(), pixels.begin(), pixels.end());
  return out;
}

inline Bytes labels(uint8_t count, const Bytes& values) {
  Bytes out = {0, 0, 8, 1, 0, 0, 0, count};
  out.insert(out.end(), values.begin(), values.end());
  return out;
}

/// `count` 8 x 8 images of four classes: each class lights one quadrant, with noise everywhere.
inline void write_quadrants(const Folder& folder, const std::string& set, int count,
                            unsigned seed) {
  std::mt19937 random(seed);
  Bytes pixels, values;
  for (int i = 0; i < count; ++i) {
    const auto label = static_cast<uint8_t>(i % 4);
    values.push_back(label);
    for (int y = 0; y < 8; ++y) {
      for (int x = 0; x < 8; ++x) {
        const bool lit = (y / 4) * 2 + x / 4 == label;
        pixels.push_back(static_cast<uint8_t>(random() % 100 + (lit ? 100 : 0)));
      }
    }
  }
  const auto low = static_cast<uint8_t>(count & 255), high = static_cast<uint8_t>(count >> 8);
  Bytes all = {0, 0, 8, 3, 0, 0, high, low, 0, 0, 0, 8, 0, 0, 0, 8};
  all.insert(all.end(), pixels.begin(), pixels.end());
  folder.write(set + "-images-idx3-ubyte", all);
  all = {0, 0, 8, 1, 0, 0, high, low};
  all.insert(all.end(), values.begin(), values.end());
  folder.write(set + "-labels-idx1-ubyte", all);
}

}  // namespace idx_files
