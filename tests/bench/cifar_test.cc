#include "bench/trainer/cifar.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "gradwire/kernels/core/error.h"
#include "tests/bench/cifar_files.h"

namespace {

using idx_files::Bytes;

class Cifar : public testing::Test {
 protected:
  // File f has f + 1 records: labels f, f + 1, ..; red 10 f + i, green 100 + f, blue 200 but for
  // its last byte, 255.
  void SetUp() override {
    for (size_t f = 0; f < cifar_files::kNames.size(); ++f) {
      Bytes all;
      for (size_t i = 0; i <= f; ++i) {
        all.push_back(static_cast<uint8_t>(f + i));
        all.insert(all.end(), 1024, static_cast<uint8_t>(10 * f + i));
        all.insert(all.end(), 1024, static_cast<uint8_t>(100 + f));
        all.insert(all.end(), 1023, 200);
        all.push_back(255);
      }
      // Labels stop at 9.
      for (size_t i = 0; i <= f; ++i) {
        all[i * 3073] = static_cast<uint8_t>((f + i) % 10);
      }
      folder_.write(cifar_files::kNames[f], all);
    }
  }

  std::string refused() {
    try {
      trainer::load_folder(folder_.path());
    } catch (const gradwire::InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  idx_files::Folder folder_;
};

TEST_F(Cifar, ReadsTheFilesInOrderAndTheirPlanesAsTheyAre) {
  const trainer::DataFolder data = trainer::load_folder(folder_.path());
  EXPECT_EQ(data.classes, 10u);
  EXPECT_EQ(data.train.count, 1u + 2 + 3 + 4 + 5);
  EXPECT_EQ(data.test.count, 6u);
  for (const trainer::LabelledImages* set : {&data.train, &data.test}) {
    EXPECT_EQ(set->channels, 3u);
    EXPECT_EQ(set->rows, 32u);
    EXPECT_EQ(set->columns, 32u);
    EXPECT_EQ(set->features(), 3072u);
    EXPECT_EQ(set->pixels.size(), set->count * 3072);
    EXPECT_EQ(set->labels.size(), set->count);
  }
  const std::vector<uint8_t> labels = {0, 1, 2, 2, 3, 4, 3, 4, 5, 6, 4, 5, 6, 7, 8};
  EXPECT_EQ(data.train.labels, labels);
  EXPECT_EQ(data.test.labels, (std::vector<uint8_t>{5, 6, 7, 8, 9, 0}));
  // The last training image is the fifth of the fifth file.
  const uint8_t* last = data.train.pixels.data() + 14 * 3072;
  EXPECT_EQ(last[0], 44);
  EXPECT_EQ(last[1023], 44);
  EXPECT_EQ(last[1024], 104);
  EXPECT_EQ(last[2048], 200);
  EXPECT_EQ(last[3071], 255);
}

TEST_F(Cifar, NamesWhatIsMissing) {
  std::filesystem::remove(folder_.file("data_batch_2.bin"));
  std::filesystem::remove(folder_.file("test_batch.bin"));
  EXPECT_NE(refused().find("lacks data_batch_2.bin, test_batch.bin, expected all six files"),
            std::string::npos)
      << refused();
}

TEST_F(Cifar, NamesTheFileThatIsNoWholeNumberOfRecords) {
  for (const size_t bytes : {size_t{0}, size_t{3072}, size_t{2 * 3073 + 1}}) {
    folder_.write("data_batch_3.bin", Bytes(bytes));
    EXPECT_NE(refused().find("data_batch_3.bin: has " + std::to_string(bytes) +
                             " bytes, expected a multiple of 3073"),
              std::string::npos)
        << refused();
  }
}

TEST_F(Cifar, NamesTheRecordWhoseLabelIsNone) {
  Bytes bytes(3 * 3073);
  bytes[2 * 3073] = 10;
  folder_.write("test_batch.bin", bytes);
  EXPECT_NE(refused().find("test_batch.bin: the label of record 2 is 10, expected 0 to 9"),
            std::string::npos)
      << refused();
}

TEST_F(Cifar, OfAHundredClassesTheFineLabelCounts) {
  idx_files::Folder hundred;
  Bytes train, test(3074, 9);
  for (const uint8_t fine : {99, 0, 42}) {
    train.push_back(static_cast<uint8_t>(fine / 5));  // the coarse one
    train.push_back(fine);
    train.insert(train.end(), 3072, static_cast<uint8_t>(fine + 1));
  }
  hundred.write("train.bin", train);
  hundred.write("test.bin", test);
  const trainer::DataFolder data = trainer::load_folder(hundred.path());
  EXPECT_EQ(data.classes, 100u);
  EXPECT_EQ(data.train.labels, (std::vector<uint8_t>{99, 0, 42}));
  EXPECT_EQ(data.train.pixels.size(), 3u * 3072);
  EXPECT_EQ(data.train.pixels[0], 100);
  EXPECT_EQ(data.train.pixels[2 * 3072 + 3071], 43);
  EXPECT_EQ(data.test.count, 1u);
  const auto refused_of = [&] {
    try {
      trainer::load_folder(hundred.path());
    } catch (const gradwire::InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  train[3074 + 1] = 100;
  hundred.write("train.bin", train);
  EXPECT_NE(refused_of().find("train.bin: the label of record 1 is 100, expected 0 to 99"),
            std::string::npos)
      << refused_of();
  hundred.write("train.bin", Bytes(3073));
  EXPECT_NE(refused_of().find("has 3073 bytes, expected a multiple of 3074"), std::string::npos);
  std::filesystem::remove(hundred.file("test.bin"));
  EXPECT_NE(refused_of().find("lacks test.bin, expected all two files of CIFAR-100's"),
            std::string::npos)
      << refused_of();
}

TEST_F(Cifar, AFolderWithoutAnyOfThemIsOneOfIdxFiles) {
  for (const std::string& name : cifar_files::kNames) {
    EXPECT_TRUE(trainer::is_cifar_folder(folder_.path()));
    std::filesystem::remove(folder_.file(name));
  }
  EXPECT_FALSE(trainer::is_cifar_folder(folder_.path()));
  EXPECT_NE(refused().find("train-images-idx3-ubyte"), std::string::npos) << refused();
  EXPECT_NE(refused().find("CIFAR-10's data_batch_1.bin"), std::string::npos) << refused();
}

}  // namespace
