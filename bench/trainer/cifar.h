#pragma once
// Reads the binary versions of CIFAR-10 and CIFAR-100: records of a label from 0 to 9, or of a
// coarse and a fine label of which the fine one counts, 0 to 99; then 32 x 32 bytes of red, of
// green, of blue, row by row (Krizhevsky, Learning multiple layers of features from tiny images,
// 2009).

#include <string>

#include "bench/trainer/images.h"

namespace trainer {

/// Whether any of data_batch_1.bin to data_batch_5.bin, test_batch.bin, train.bin and test.bin is
/// there.
bool is_cifar_folder(const std::string& folder);

/// All files of the version; all of its classes, whether or not each has an example.
/// @throws gradwire::InvalidArgument listing the missing files, or naming the one that is no whole
/// number of records, or the record whose label is none.
DataFolder load_cifar_folder(const std::string& folder);

}  // namespace trainer
