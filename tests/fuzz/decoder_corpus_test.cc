// The decoder against a fixed corpus: valid payloads of every spec, size and dtype, and thousands
// of damaged ones, the same on every run. `--write-corpus DIR` leaves the valid ones as files for
// decoder_fuzz to start from.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "gradwire/kernels/compress/compressor.h"
#include "tests/fuzz/decoder_target.h"
#include "tests/support/generators.h"

namespace gradwire::fuzz {
namespace {

constexpr uint32_t kSeed = 20240607;
constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

std::vector<std::byte> payload_of(const std::string& spec, size_t numel, DType dtype) {
  const auto compressor = make_compressor(parse_spec(spec), {.numel = numel,
                                                             .dtype = dtype,
                                                             .device = {},
                                                             .segments = {},
                                                             .seed = 1,
                                                             .rank = 0});
  const auto stream = make_inline_stream(1);
  Workspace workspace;
  Context context{*stream, workspace};
  testing::OwnedTensor g = testing::tensor_of(testing::normal(numel, kSeed), dtype);
  std::vector<std::byte> out(compressor->capacity_bytes());
  compressor->compress(g.view(), {}, {}, out, context);
  stream->wait();
  out.resize(payload_bytes(out));
  return out;
}

/// Inputs of one spec: a valid payload of every size and dtype, for every action.
template <class F>
void for_each_valid(size_t spec, F&& use) {
  for (size_t n = 0; n < numels().size(); ++n) {
    for (size_t d = 0; d < 3; ++d) {
      const auto payload = payload_of(specs()[spec], numels()[n], kDTypes[d]);
      for (uint8_t action = 0; action < kActions; ++action) {
        std::vector<std::byte> input = {std::byte(spec), std::byte(n), std::byte(d),
                                        std::byte(action)};
        input.insert(input.end(), payload.begin(), payload.end());
        use(input);
      }
    }
  }
}

class DecoderCorpus : public ::testing::TestWithParam<size_t> {};

TEST_P(DecoderCorpus, ValidAndDamagedPayloadsStayInTheirMemory) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  size_t inputs = 0;
  const auto try_one = [&inputs](const std::vector<std::byte>& input) {
    ++inputs;
    return decode(input);
  };
  for_each_valid(GetParam(), [&](const std::vector<std::byte>& valid) {
    EXPECT_TRUE(try_one(valid)) << "numel " << numels()[std::to_integer<size_t>(valid[1])]
                                << ", dtype " << std::to_integer<int>(valid[2]) << ", action "
                                << std::to_integer<int>(valid[3]);
    for (int round = 0; round < 24; ++round) {
      std::vector<std::byte> damaged = valid;
      if (round % 2 == 1) {
        damaged[kControlBytes - 1] |= std::byte{0x80};  // the header mended behind the damage
      }
      const size_t at = kControlBytes + random() % (damaged.size() - kControlBytes);
      switch (round / 2 % 6) {
        case 0:
          damaged[at] ^= std::byte(1 << random() % 8);
          break;
        case 1:
          damaged[at] = std::byte(random());
          break;
        case 2:
          damaged.resize(at);
          break;
        case 3:
          damaged.insert(damaged.end(), random() % 5000, std::byte(random()));
          break;
        case 4:  // a run of ones: the largest counts and indices
          std::fill(damaged.begin() + static_cast<long>(at),
                    damaged.begin() + static_cast<long>(std::min(at + 8, damaged.size())),
                    std::byte{0xFF});
          break;
        default:  // counts and tables lie at the front
          damaged[kControlBytes + random() % std::min<size_t>(damaged.size() - kControlBytes, 96)] =
              std::byte(random());
      }
      try_one(damaged);
    }
  });
  EXPECT_GT(inputs, 3000u);
}

INSTANTIATE_TEST_SUITE_P(Specs, DecoderCorpus, ::testing::Range(size_t{0}, specs().size()),
                         [](const auto& test) {
                           std::string name = specs()[test.param];
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name + "_" + std::to_string(test.param);
                         });

void write_corpus(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  size_t number = 0;
  for (size_t spec = 0; spec < specs().size(); ++spec) {
    for_each_valid(spec, [&](const std::vector<std::byte>& input) {
      std::ofstream file(folder / std::to_string(number++), std::ios::binary);
      file.write(reinterpret_cast<const char*>(input.data()),
                 static_cast<std::streamsize>(input.size()));
    });
  }
  std::printf("wrote %zu inputs into %s\n", number, folder.c_str());
}

}  // namespace
}  // namespace gradwire::fuzz

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--write-corpus") {
    gradwire::fuzz::write_corpus(argv[2]);
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
