#pragma once
// Labelled images, and the folders that hold them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

/// Images of equal size with one label each: image by image, channel by channel, row by row.
struct LabelledImages {
  size_t count = 0;
  size_t channels = 1;
  size_t rows = 0;
  size_t columns = 0;
  std::vector<uint8_t> pixels = {};  ///< count * channels * rows * columns
  std::vector<uint8_t> labels = {};  ///< count

  size_t plane() const { return rows * columns; }  ///< pixels of one channel of an image
  size_t features() const { return channels * plane(); }
};

/// What a data folder holds. Labels are below `classes`.
struct DataFolder {
  LabelledImages train;
  LabelledImages test;
  size_t classes = 0;
};

/// CIFAR-10's files where one of them is there (cifar.h), else IDX files (idx.h).
/// @throws gradwire::InvalidArgument listing the missing files, or naming the one that is wrong.
DataFolder load_folder(const std::string& folder);

}  // namespace trainer
