#pragma once
// Reads CIFAR-10's binary version: records of 3073 bytes, a label from 0 to 9, then 32 x 32 bytes
// of red, of green, of blue, row by row (Krizhevsky, Learning multiple layers of features from tiny
// images, 2009).

#include <string>

#include "bench/trainer/images.h"

namespace trainer {

/// Whether any of data_batch_1.bin to data_batch_5.bin and test_batch.bin is there.
bool is_cifar_folder(const std::string& folder);

/// All six files; ten classes, whether or not each has an example.
/// @throws gradwire::InvalidArgument listing the missing files, or naming the one that is no whole
/// number of records, or the record whose label is none.
DataFolder load_cifar_folder(const std::string& folder);

}  // namespace trainer
