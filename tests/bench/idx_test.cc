#include "bench/trainer/idx.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <functional>

#include "gradwire/kernels/core/error.h"
#include "tests/bench/idx_files.h"

namespace {

using idx_files::Bytes;
using idx_files::Folder;
using trainer::LabelledImages;

// The message of the InvalidArgument that `call` throws, or what happened instead.
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const gradwire::InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "message: " << message << "\npart: " << part;
  }
}

void write_gzip(const std::string& path, const Bytes& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

// Two classes of 1 x 2 images: three to train, two to test.
class DataFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("train-images-idx3-ubyte", idx_files::images(3, 1, 2, {1, 2, 3, 4, 5, 6}));
    folder_.write("train-labels-idx1-ubyte", idx_files::labels(3, {0, 1, 0}));
    folder_.write("t10k-images-idx3-ubyte", idx_files::images(2, 1, 2, {7, 8, 9, 10}));
    folder_.write("t10k-labels-idx1-ubyte", idx_files::labels(2, {1, 0}));
  }
  std::string load_error() {
    return message_of([&] { trainer::load_folder(folder_.path()); });
  }
  Folder folder_;
};

TEST(Idx, ReadsImagesAndLabelsFromLiteralBytes) {
  LabelledImages out;
  trainer::parse_idx_images(
      {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 10, 20, 30, 40, 50, 255}, "images", out);
  trainer::parse_idx_labels({0, 0, 8, 1, 0, 0, 0, 2, 7, 9}, "labels", out);
  EXPECT_EQ(out.count, 2u);
  EXPECT_EQ(out.rows, 1u);
  EXPECT_EQ(out.columns, 3u);
  EXPECT_EQ(out.pixels, (Bytes{10, 20, 30, 40, 50, 255}));
  EXPECT_EQ(out.labels, (Bytes{7, 9}));
}

TEST(Idx, NamesFileValueAndExpectationOfABadImagesFile) {
  const auto error = [](Bytes bytes) {
    LabelledImages out;
    return message_of([&] { trainer::parse_idx_images(bytes, "some/file", out); });
  };
  expect_parts(error({0, 0, 8, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 5}),
               {"some/file", "0x00000801", "0x00000803"});
  expect_parts(error({0, 0, 8}), {"some/file", "3 bytes", "16"});
  expect_parts(error(idx_files::images(0, 1, 1, {})), {"some/file", "dimension 0 is 0"});
  expect_parts(error(idx_files::images(1, 2, 0, {})), {"some/file", "dimension 2 is 0"});
  expect_parts(error(idx_files::images(2, 1, 2, {1, 2, 3})),
               {"some/file", "truncated", "3 bytes", "2 x 1 x 2"});
  expect_parts(error(idx_files::images(2, 1, 2, {1, 2, 3, 4, 5})),
               {"some/file", "5 bytes", "2 x 1 x 2", "trailing"});
  // A header that claims 2^96 bytes allocates nothing and does not wrap around.
  expect_parts(error({0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}),
               {"some/file", "truncated", "4294967295"});
}

TEST(Idx, ComparesTheNumberOfLabelsWithTheImages) {
  LabelledImages out;
  out.count = 3;
  expect_parts(message_of([&] {
                 trainer::parse_idx_labels({0, 0, 8, 1, 0, 0, 0, 2, 0, 1}, "some/labels", out);
               }),
               {"some/labels", "2 labels", "expected 3"});
}

TEST_F(DataFolderTest, IsReadWhole) {
  const trainer::DataFolder data = trainer::load_folder(folder_.path());
  EXPECT_EQ(data.classes, 2u);
  EXPECT_EQ(data.train.pixels, (Bytes{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(data.train.labels, (Bytes{0, 1, 0}));
  EXPECT_EQ(data.test.pixels, (Bytes{7, 8, 9, 10}));
  EXPECT_EQ(data.test.labels, (Bytes{1, 0}));
}

TEST_F(DataFolderTest, MayHoldCompressedFiles) {
  std::filesystem::remove(folder_.file("train-images-idx3-ubyte"));
  Bytes pixels(200 * 100 * 100);
  for (size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<uint8_t>(i * 2654435761u >> 24);  // more than one read buffer
  }
  Bytes values(200);
  values[1] = 1;
  write_gzip(folder_.file("train-images-idx3-ubyte.gz"), idx_files::images(200, 100, 100, pixels));
  folder_.write("train-labels-idx1-ubyte", idx_files::labels(200, values));
  folder_.write("t10k-images-idx3-ubyte", idx_files::images(1, 100, 100, Bytes(10000, 3)));
  folder_.write("t10k-labels-idx1-ubyte", idx_files::labels(1, {1}));
  EXPECT_EQ(trainer::load_folder(folder_.path()).train.pixels, pixels);
}

TEST_F(DataFolderTest, ReportsACompressedFileCutShort) {
  std::filesystem::remove(folder_.file("train-images-idx3-ubyte"));
  const std::string path = folder_.file("train-images-idx3-ubyte.gz");
  Bytes pixels(6000);
  for (size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
  }
  write_gzip(path, idx_files::images(3, 20, 100, pixels));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  expect_parts(load_error(), {path, "cannot be read"});
}

TEST_F(DataFolderTest, SaysHowManyBytesOfACompressedFileCouldBeRead) {
  const auto error = [&](Bytes gzip) {
    folder_.write("some.gz", gzip);
    return message_of([&] { trainer::read_file(folder_.file("some.gz")); });
  };
  // Header, then a last block of seven stored bytes (RFC 1951, 1952) of which five are there.
  const Bytes header = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3};
  Bytes stored = header;
  stored.insert(stored.end(), {1, 7, 0, 0xf8, 0xff, 'a', 'b', 'c', 'd', 'e'});
  expect_parts(error(stored), {"some.gz", "after 5 bytes", "unexpected end"});
  // All seven, but of another checksum.
  stored.insert(stored.end(), {'f', 'g', 1, 2, 3, 4, 7, 0, 0, 0});
  expect_parts(error(stored), {"some.gz", "after 7 bytes", "incorrect data check"});
  expect_parts(error(header), {"some.gz", "after 0 bytes"});
}

TEST_F(DataFolderTest, RejectsBytesBehindTheCompressedOnes) {
  const std::string path = folder_.file("some.gz");
  write_gzip(path, {1, 2, 3});
  std::ofstream(path, std::ios::binary | std::ios::app) << "rest";
  expect_parts(message_of([&] { trainer::read_file(path); }), {path, "4 trailing bytes"});
}

TEST_F(DataFolderTest, ReadsCompressedMembersThatFollowEachOther) {
  write_gzip(folder_.file("some.gz"), {1, 2, 3});
  write_gzip(folder_.file("more.gz"), {4, 5});
  std::ifstream more(folder_.file("more.gz"), std::ios::binary);
  std::ofstream(folder_.file("some.gz"), std::ios::binary | std::ios::app) << more.rdbuf();
  EXPECT_EQ(trainer::read_file(folder_.file("some.gz")), (Bytes{1, 2, 3, 4, 5}));
}

TEST_F(DataFolderTest, ListsExactlyTheMissingFiles) {
  std::filesystem::remove(folder_.file("train-labels-idx1-ubyte"));
  std::filesystem::remove(folder_.file("t10k-images-idx3-ubyte"));
  const std::string message = load_error();
  expect_parts(message, {folder_.path(), "train-labels-idx1-ubyte, t10k-images-idx3-ubyte,"});
  EXPECT_EQ(message.find("train-images"), std::string::npos) << message;
  expect_parts(message_of([] { trainer::load_folder("/no/such/folder"); }),
               {"/no/such/folder", "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"});
}

TEST_F(DataFolderTest, RejectsATestLabelThatTrainingNeverSaw) {
  folder_.write("t10k-labels-idx1-ubyte", idx_files::labels(2, {1, 2}));
  expect_parts(load_error(), {"t10k-labels-idx1-ubyte", "label 1 is 2", "below 2"});
}

TEST_F(DataFolderTest, RejectsAClassWithoutExamples) {
  folder_.write("train-labels-idx1-ubyte", idx_files::labels(3, {0, 255, 0}));
  expect_parts(load_error(), {"train-labels-idx1-ubyte", "largest label is 255", "label 1"});
}

TEST_F(DataFolderTest, RejectsTestImagesOfAnotherSize) {
  folder_.write("t10k-images-idx3-ubyte", idx_files::images(2, 2, 1, {7, 8, 9, 10}));
  expect_parts(load_error(), {"t10k-images-idx3-ubyte", "2 x 1", "expected 1 x 2"});
}

TEST_F(DataFolderTest, MayHaveADotBeforeIdxAsKagglesCopiesHave) {
  for (const std::string set : {"train", "t10k"}) {
    for (const std::string kind : {"images-idx3-ubyte", "labels-idx1-ubyte"}) {
      std::string dotted = kind;
      dotted[6] = '.';
      std::filesystem::rename(folder_.file(set + "-" + kind), folder_.file(set + "-" + dotted));
    }
  }
  const trainer::DataFolder data = trainer::load_folder(folder_.path());
  EXPECT_EQ(data.train.pixels, (Bytes{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(data.test.labels, (Bytes{1, 0}));
}

TEST_F(DataFolderTest, MayBeOneSetOfEmnistWhoseLettersCountFromOne) {
  idx_files::Folder letters;
  letters.write("emnist-letters-train-images-idx3-ubyte",
                idx_files::images(3, 1, 2, {1, 2, 3, 4, 5, 6}));
  letters.write("emnist-letters-train-labels-idx1-ubyte", idx_files::labels(3, {3, 1, 2}));
  letters.write("emnist-letters-test-images-idx3-ubyte", idx_files::images(1, 1, 2, {7, 8}));
  letters.write("emnist-letters-test-labels-idx1-ubyte", idx_files::labels(1, {2}));
  const trainer::DataFolder data = trainer::load_folder(letters.path());
  EXPECT_EQ(data.classes, 3u);
  EXPECT_EQ(data.train.labels, (Bytes{2, 0, 1}));
  EXPECT_EQ(data.test.labels, (Bytes{1}));
  letters.write("emnist-letters-test-labels-idx1-ubyte", idx_files::labels(1, {0}));
  expect_parts(message_of([&] { trainer::load_folder(letters.path()); }),
               {"emnist-letters-test-labels-idx1-ubyte", "label 0 is 0", "at least 1"});
}

TEST_F(DataFolderTest, IsRefusedWithSeveralSets) {
  for (const std::string kind : {"images-idx3-ubyte", "labels-idx1-ubyte"}) {
    for (const auto& [from, to] : {std::pair{"train-", "train-"}, std::pair{"t10k-", "test-"}}) {
      std::filesystem::copy_file(folder_.file(from + kind),
                                 folder_.file("emnist-digits-" + (to + kind)));
    }
  }
  expect_parts(load_error(), {"several data sets (MNIST's names, emnist-digits)"});
}

}  // namespace
