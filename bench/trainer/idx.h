#pragma once
// Reads IDX files, the format of MNIST (http://yann.lecun.com/exdb/mnist): big-endian header, then
// unsigned bytes. Plain or gzip-compressed.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/trainer/images.h"

namespace trainer {

/// Fills count, rows, columns and pixels from the bytes of an images file; `file` is for messages.
/// @throws gradwire::InvalidArgument naming the file, the value found and the one expected.
void parse_idx_images(std::vector<uint8_t> bytes, std::string_view file, LabelledImages& out);

/// Fills labels from the bytes of a labels file; out.count must be set and agree.
void parse_idx_labels(std::vector<uint8_t> bytes, std::string_view file, LabelledImages& out);

/// The whole file, decompressed when it is gzip.
/// @throws gradwire::InvalidArgument naming the file and how many (decompressed) bytes could be
/// read, or how many bytes trail the last gzip member.
std::vector<uint8_t> read_file(const std::string& path);

/// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
/// t10k-labels-idx1-ubyte, each plain or with .gz (plain wins), with a dot before "idx" (as
/// Kaggle's copies have it), or EMNIST's emnist-SET-train-... and emnist-SET-test-.... Labels that
/// begin at 1 become one less. `classes` is the largest training label plus one.
/// @throws gradwire::InvalidArgument listing the missing files, or naming the one that is wrong, or
/// the data sets of a folder that has several.
DataFolder load_idx_folder(const std::string& folder);

}  // namespace trainer
