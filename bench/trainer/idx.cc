#include "bench/trainer/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <span>
#include <sstream>

#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

using gradwire::check;
using gradwire::concat;
using gradwire::InvalidArgument;

constexpr uint32_t kImagesMagic = 0x00000803;  // unsigned bytes, 3 dimensions
constexpr uint32_t kLabelsMagic = 0x00000801;  // unsigned bytes, 1 dimension

std::string hex(uint32_t value) {
  std::ostringstream out;
  out << "0x" << std::hex << std::setw(8) << std::setfill('0') << value;
  return out.str();
}

uint32_t big_endian(std::span<const uint8_t> bytes, size_t offset) {
  return uint32_t{bytes[offset]} << 24 | uint32_t{bytes[offset + 1]} << 16 |
         uint32_t{bytes[offset + 2]} << 8 | uint32_t{bytes[offset + 3]};
}

// Checks magic and length, and returns the dimensions.
template <size_t kDimensions>
std::array<uint32_t, kDimensions> parse_header(std::span<const uint8_t> bytes,
                                               std::string_view file, uint32_t magic,
                                               std::string_view holds) {
  constexpr size_t kHeaderBytes = 4 + 4 * kDimensions;
  check(bytes.size() >= kHeaderBytes, file, ": ", bytes.size(), " bytes, expected a header of ",
        kHeaderBytes);
  const uint32_t found = big_endian(bytes, 0);
  check(found == magic, file, ": magic is ", hex(found), ", expected ", hex(magic), " (", holds,
        ")");
  std::array<uint32_t, kDimensions> dimensions{};
  unsigned __int128 elements = 1;
  for (size_t d = 0; d < kDimensions; ++d) {
    dimensions[d] = big_endian(bytes, 4 + 4 * d);
    check(dimensions[d] > 0, file, ": dimension ", d, " is 0, expected at least 1");
    elements *= dimensions[d];  // at most 96 bits
  }
  const size_t body = bytes.size() - kHeaderBytes;
  std::ostringstream product;
  for (size_t d = 0; d < kDimensions; ++d) {
    product << (d == 0 ? "" : " x ") << dimensions[d];
  }
  check(body >= elements, file, ": truncated: ", body, " bytes after the header, expected ",
        product.str());
  check(body == elements, file, ": ", body, " bytes after the header, expected ", product.str(),
        "; the rest is trailing bytes");
  return dimensions;
}

// Decompresses gzip members from memory; `file` is for messages.
class Inflater {
 public:
  explicit Inflater(const std::string& file) : file_(file) {
    constexpr int kGzip = 16 + MAX_WBITS;
    check(inflateInit2(&stream_, kGzip) == Z_OK, file, ": zlib cannot start, expected memory");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  std::vector<uint8_t> run(std::span<uint8_t> compressed) {
    do {
      member(compressed);
      // Members may follow each other (RFC 1952); anything else behind one is not ours.
      check(compressed.empty() || is_gzip(compressed), file_, ": ", compressed.size(),
            " trailing bytes behind the gzip member, expected none");
      inflateReset(&stream_);
    } while (!compressed.empty());
    out_.resize(used_);
    return std::move(out_);
  }

  static bool is_gzip(std::span<const uint8_t> bytes) {
    return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
  }

 private:
  static constexpr size_t kMostAtOnce = size_t{1} << 30;  // zlib counts in unsigned int

  // One member, which is taken off `compressed`.
  void member(std::span<uint8_t>& compressed) {
    for (int code = Z_OK; code != Z_STREAM_END;) {
      if (used_ == out_.size()) {
        out_.resize(std::max<size_t>(size_t{1} << 20, out_.size() * 2));
      }
      const auto given = static_cast<uInt>(std::min(compressed.size(), kMostAtOnce));
      const auto room = static_cast<uInt>(std::min(out_.size() - used_, kMostAtOnce));
      stream_.next_in = compressed.data();
      stream_.avail_in = given;
      stream_.next_out = out_.data() + used_;
      stream_.avail_out = room;
      code = inflate(&stream_, Z_NO_FLUSH);
      used_ += room - stream_.avail_out;
      compressed = compressed.subspan(given - stream_.avail_in);
      const bool cut_short = code == Z_BUF_ERROR;  // room there was
      if (cut_short || (code != Z_OK && code != Z_STREAM_END)) {
        const char* why = stream_.msg != nullptr ? stream_.msg : zError(code);
        throw InvalidArgument(concat(file_, ": cannot be read after ", used_, " bytes (",
                                     cut_short ? "unexpected end of file" : why, ")"));
      }
    }
  }

  const std::string& file_;
  z_stream stream_{};
  std::vector<uint8_t> out_;
  size_t used_ = 0;
};

std::vector<uint8_t> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  check(file.is_open(), path, ": cannot be opened for reading");
  std::vector<uint8_t> bytes;
  size_t used = 0;
  while (file.good()) {
    bytes.resize(std::max<size_t>(size_t{1} << 20, bytes.size() * 2));
    file.read(reinterpret_cast<char*>(bytes.data() + used),
              static_cast<std::streamsize>(bytes.size() - used));
    used += static_cast<size_t>(file.gcount());
  }
  check(file.eof() && !file.bad(), path, ": cannot be read after ", used, " bytes");
  bytes.resize(used);
  return bytes;
}

std::string find_file(const std::string& folder, std::string_view name) {
  const auto plain = std::filesystem::path(folder) / name;
  if (std::filesystem::is_regular_file(plain)) {
    return plain.string();
  }
  const std::string compressed = plain.string() + ".gz";
  return std::filesystem::is_regular_file(compressed) ? compressed : "";
}

// A data set's four files: images and labels to train with, then those to test with.
using Four = std::array<std::string, 4>;

std::string named(std::string_view prefix, bool images, char joint) {
  return concat(prefix, images ? "-images" : "-labels", joint, images ? "idx3" : "idx1", "-ubyte");
}

// The paths of a set; "" for those that are not there. Kaggle's copies of MNIST have a dot in the
// place of the second hyphen.
Four find_four(const std::string& folder, std::string_view train, std::string_view test) {
  Four paths;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string_view prefix = i < 2 ? train : test;
    for (const char joint : {'-', '.'}) {
      if (paths[i].empty()) {
        paths[i] = find_file(folder, named(prefix, i % 2 == 0, joint));
      }
    }
  }
  return paths;
}

bool complete(const Four& paths) {
  return std::ranges::none_of(paths, [](const std::string& path) { return path.empty(); });
}

// MNIST's names, or those of one of EMNIST's six sets, of which a folder may hold several.
Four find_set(const std::string& folder) {
  constexpr std::array<std::string_view, 6> kEmnist = {"balanced", "byclass", "bymerge",
                                                       "digits",   "letters", "mnist"};
  const Four mnist = find_four(folder, "train", "t10k");
  std::vector<Four> found;
  std::string which;
  if (complete(mnist)) {
    found.push_back(mnist);
    which = "MNIST's names";
  }
  for (const std::string_view set : kEmnist) {
    const Four four =
        find_four(folder, concat("emnist-", set, "-train"), concat("emnist-", set, "-test"));
    if (complete(four)) {
      found.push_back(four);
      which += concat(which.empty() ? "" : ", ", "emnist-", set);
    }
  }
  std::string missing;
  for (size_t i = 0; i < mnist.size(); ++i) {
    if (mnist[i].empty()) {
      missing +=
          concat(missing.empty() ? "" : ", ", named(i < 2 ? "train" : "t10k", i % 2 == 0, '-'));
    }
  }
  check(!found.empty(), "data: folder '", folder, "' lacks ", missing,
        ", expected IDX files of these names (or with a dot before idx, EMNIST's "
        "emnist-letters-train-..., all plain or with .gz), or CIFAR-10's data_batch_1.bin, ..., or "
        "CIFAR-100's train.bin");
  check(found.size() == 1, "data: folder '", folder, "' holds several data sets (", which,
        "), expected the four files of one");
  return found[0];
}

LabelledImages load_pair(const std::string& images, const std::string& labels) {
  LabelledImages out;
  parse_idx_images(read_file(images), images, out);
  parse_idx_labels(read_file(labels), labels, out);
  return out;
}

// EMNIST's letters count from 1: where no example has label 0, 1 is the first class.
void count_from_zero(DataFolder& out, std::string_view test_file) {
  if (*std::ranges::min_element(out.train.labels) != 1) {
    return;
  }
  for (size_t i = 0; i < out.test.count; ++i) {
    check(out.test.labels[i] > 0, test_file, ": label ", i,
          " is 0, expected at least 1, the least of "
          "the training set");
  }
  for (LabelledImages* images : {&out.train, &out.test}) {
    for (uint8_t& label : images->labels) {
      --label;
    }
  }
}

// A wrong byte among the labels would otherwise add classes silently.
size_t count_classes(std::span<const uint8_t> labels, std::string_view file) {
  std::array<size_t, 256> examples{};
  for (const uint8_t label : labels) {
    ++examples[label];
  }
  const size_t classes = *std::max_element(labels.begin(), labels.end()) + size_t{1};
  for (size_t c = 0; c < classes; ++c) {
    check(examples[c] > 0, file, ": the largest label is ", classes - 1,
          ", but no example has label ", c, ", expected every class to appear");
  }
  check(classes >= 2, file, ": all labels are 0, expected at least 2 classes");
  return classes;
}

}  // namespace

void parse_idx_images(std::vector<uint8_t> bytes, std::string_view file, LabelledImages& out) {
  const auto dimensions =
      parse_header<3>(bytes, file, kImagesMagic, "unsigned bytes, 3 dimensions: images");
  out.count = dimensions[0];
  out.rows = dimensions[1];
  out.columns = dimensions[2];
  bytes.erase(bytes.begin(), bytes.begin() + 16);
  out.pixels = std::move(bytes);
}

void parse_idx_labels(std::vector<uint8_t> bytes, std::string_view file, LabelledImages& out) {
  const auto dimensions =
      parse_header<1>(bytes, file, kLabelsMagic, "unsigned bytes, 1 dimension: labels");
  check(dimensions[0] == out.count, file, ": ", dimensions[0], " labels, expected ", out.count,
        ", one for each image");
  bytes.erase(bytes.begin(), bytes.begin() + 8);
  out.labels = std::move(bytes);
}

std::vector<uint8_t> read_file(const std::string& path) {
  std::vector<uint8_t> bytes = read_bytes(path);
  return Inflater::is_gzip(bytes) ? Inflater(path).run(bytes) : bytes;
}

DataFolder load_idx_folder(const std::string& folder) {
  const Four paths = find_set(folder);
  DataFolder out;
  out.train = load_pair(paths[0], paths[1]);
  out.test = load_pair(paths[2], paths[3]);
  check(out.test.rows == out.train.rows && out.test.columns == out.train.columns, paths[2],
        ": images are ", out.test.rows, " x ", out.test.columns, ", expected ", out.train.rows,
        " x ", out.train.columns, " as in training");
  count_from_zero(out, paths[3]);
  out.classes = count_classes(out.train.labels, paths[1]);
  for (size_t i = 0; i < out.test.count; ++i) {
    check(out.test.labels[i] < out.classes, paths[3], ": label ", i, " is ",
          static_cast<int>(out.test.labels[i]), ", must be below ", out.classes,
          ", the classes of the training set");
  }
  return out;
}

}  // namespace trainer
