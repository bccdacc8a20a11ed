#pragma once
// CIFAR-10's six files for tests, written byte by byte.

#include <array>
#include <cstdint>
#include <random>
#include <string>

#include "tests/bench/idx_files.h"

namespace cifar_files {

using idx_files::Bytes;

inline const std::array<std::string, 6> kNames = {"data_batch_1.bin", "data_batch_2.bin",
                                                  "data_batch_3.bin", "data_batch_4.bin",
                                                  "data_batch_5.bin", "test_batch.bin"};

/// A record whose label is 0 to 9: eight rows of one colour are lit, noise is everywhere.
inline Bytes record(uint8_t label, std::mt19937& random) {
  Bytes bytes = {label};
  for (int colour = 0; colour < 3; ++colour) {
    for (int y = 0; y < 32; ++y) {
      for (int x = 0; x < 32; ++x) {
        const bool lit = colour == label % 3 && y / 8 == label / 3;
        bytes.push_back(static_cast<uint8_t>(random() % 60 + (lit ? 150 : 0)));
      }
    }
  }
  return bytes;
}

/// `count` records in each file; the labels go on from file to file.
inline void write(const idx_files::Folder& folder, int count) {
  std::mt19937 random(5);
  int label = 0;
  for (const std::string& name : kNames) {
    Bytes all;
    for (int i = 0; i < count; ++i) {
      const Bytes one = record(static_cast<uint8_t>(label++ % 10), random);
      all.insert(all.end(), one.begin(), one.end());
    }
    folder.write(name, all);
  }
}

}  // namespace cifar_files
