// The bytes of WIRE_FORMAT.md, literally; and bytes nobody should send.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/kernels/compress_cases.h"
#include "tests/support/close.h"

namespace gradwire::testing {
namespace {

using Bytes = std::vector<int>;

Bytes body_of(const std::vector<std::byte>& payload) {
  Bytes body;
  for (size_t i = 32; i < payload.size(); ++i) {
    body.push_back(std::to_integer<int>(payload[i]));
  }
  return body;
}

std::vector<std::byte> encode(const std::string& spec, const std::vector<float>& values,
                              DType dtype = DType::kFloat32) {
  Rig rig(spec, {.numel = values.size(), .dtype = dtype});
  OwnedTensor g = tensor_of(values, dtype);
  return rig.compress(g, {}, {});
}

TEST(WireFormat, HeaderIs32LittleEndianBytes) {
  const auto payload = encode("fp16", std::vector<float>(5000, 1.0f));
  Bytes header;
  for (size_t i = 0; i < 32; ++i) {
    header.push_back(std::to_integer<int>(payload[i]));
  }
  // FNV-1a of "fp16", computed by hand here.
  uint32_t hash = 2166136261u;
  for (const char c : std::string("fp16")) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  }
  const auto byte = [&](int i) { return static_cast<int>((hash >> (8 * i)) & 255); };
  const Bytes expected = {'G',     'R',     'W',     '1',     1, 1, 1, 0,
                          byte(0), byte(1), byte(2), byte(3), 0, 0, 0, 0,   // first chunk
                          0x88,    0x13,    0,       0,       0, 0, 0, 0,   // 5000 elements
                          0x30,    0x27,    0,       0,       0, 0, 0, 0};  // 32 + 10000 bytes
  EXPECT_EQ(header, expected);
}

TEST(WireFormat, DenseIsRawLittleEndianValues) {
  EXPECT_EQ(body_of(encode("none", {1.0f, -2.5f})), (Bytes{0, 0, 0x80, 0x3F, 0, 0, 0x20, 0xC0}));
  EXPECT_EQ(body_of(encode("none", {1.0f, -2.5f}, DType::kFloat16)), (Bytes{0, 0x3C, 0, 0xC1}));
  EXPECT_EQ(body_of(encode("fp16", {1.0f, 1e9f})), (Bytes{0, 0x3C, 0xFF, 0x7B}));
  EXPECT_EQ(body_of(encode("bf16", {1.0f, -2.5f})), (Bytes{0x80, 0x3F, 0x20, 0xC0}));
}

TEST(WireFormat, Int8IsScalesThenBytes) {
  // Blocks of 8 with maxima 127 and 2.54: scales 1 and 0.02.
  EXPECT_EQ(
      body_of(encode("int8,block=8", {127, -1, 2.5f, 3.5f, 0, 0.4f, -127, 63, 2.54f, -1.27f})),
      (Bytes{0, 0, 0x80, 0x3F, 0x0A, 0xD7, 0xA3, 0x3C, 127, 255, 2, 4, 0, 0, 129, 63, 127, 192}));
}

TEST(WireFormat, Int4IsScalesThenNibbles) {
  EXPECT_EQ(body_of(encode("int4,block=8", {7, -7, 3, -1, 0})),
            (Bytes{0, 0, 0x80, 0x3F, 0x97, 0xF3, 0x00}));
}

TEST(WireFormat, TwoBitsAreScalesThenFoursOfCodes) {
  // Halves of the largest go to the even code, 0; the second block is shorter.
  EXPECT_EQ(body_of(encode("2bit,block=8", {2, -2, 1, -1, 1.5f, -1.5f, 0, 1.1f, -3, 0, 3})),
            (Bytes{0, 0, 0, 0x40, 0, 0, 0x40, 0x40, 0x0D, 0x4D, 0x13}));
  const auto payload = encode("2bit", std::vector<float>(kChunk + 1, 1.0f));
  EXPECT_EQ(payload[6], std::byte{6});
  EXPECT_EQ(payload.size(), 32u + 64 + 1024 + 4 + 1);
}

TEST(WireFormat, OneBitIsScalesThenBits) {
  // Means 1.5 and 2; both zeros have bit 0.
  EXPECT_EQ(body_of(encode("1bit,block=8", {2, -2, 1, -1, 3, -3, 0.0f, -0.0f, -3, 1})),
            (Bytes{0, 0, 0xC0, 0x3F, 0, 0, 0, 0x40, 0x2A, 0x01}));
  // The mean rounds to 0, or is none: no bits.
  EXPECT_EQ(body_of(encode("1bit,block=8", {-1e-45f, 0, 0, 0})), (Bytes{0, 0, 0, 0, 0}));
  EXPECT_EQ(body_of(encode("1bit,block=8", {-1, -INFINITY})), (Bytes{0, 0, 0, 0, 0}));
  const auto payload = encode("1bit", std::vector<float>(kChunk + 1, -1.0f));
  EXPECT_EQ(payload[6], std::byte{7});
  EXPECT_EQ(payload.size(), 32u + 64 + 512 + 4 + 1);
}

TEST(WireFormat, ChunksOfAQuantizedPayloadAreRecords) {
  const size_t numel = kChunk + 1;
  const auto payload = encode("int4", std::vector<float>(numel, 7.0f));
  ASSERT_EQ(payload.size(), 32u + 64 + 2048 + 4 + 1);
  EXPECT_EQ(std::to_integer<int>(payload[32 + 64]), 0x77);
  EXPECT_EQ(std::to_integer<int>(payload.back()), 0x07);
}

TEST(WireFormat, TopKIsCountsIndicesValues) {
  std::vector<float> x(2 * kChunk);
  x[0x123] = 1.0f;
  x[0xABC] = -2.0f;
  x[0xFFF] = 1.0f;
  x[kChunk + 2] = 1.0f;
  EXPECT_EQ(body_of(encode("topk:0.0004,fp16", x)),  // k = 4
            (Bytes{3,    0,    1,    0,              // counts
                   0x23, 0xC1, 0xAB, 0xFF, 0x0F,     // chunk 0: a pair and a single
                   0x02, 0x00, 0x00,                 // chunk 1, padding
                   0x00, 0x3C, 0x00, 0xC0, 0x00, 0x3C, 0x00, 0x3C}));
}

TEST(WireFormat, EveryChunkOfChunkTopKHasItsOwn) {
  std::vector<float> x(kChunk + 100);  // two of a whole chunk, one of a shorter one
  x[0x123] = 1.0f;
  x[0xABC] = -2.0f;
  x[0xFFF] = 1.0f;
  x[kChunk + 2] = 0.5f;
  x[kChunk + 7] = 0.25f;
  EXPECT_EQ(body_of(encode("chunktopk:2/4096,fp16", x)),
            (Bytes{2,    0,    1,    0,           // counts
                   0x23, 0xC1, 0xAB,              // chunk 0: a pair, of equal ones the first
                   0x02, 0x00, 0x00, 0x00, 0x00,  // chunk 1: a single, padding
                   0x00, 0x3C, 0x00, 0xC0, 0x00, 0x38}));
}

TEST(WireFormat, TopKWithFourBitValuesHasOneScalePerChunk) {
  std::vector<float> x(2 * kChunk);
  x[1] = 7.0f;
  x[2] = -3.0f;
  x[5] = 1.0f;
  x[kChunk + 2] = 1.75f;
  EXPECT_EQ(body_of(encode("topk:0.0004,int4", x)),
            (Bytes{3, 0, 1, 0, 0x80, 0x3F, 0x80, 0x3E,     // bf16 scales 1 and 0.25
                   0x01, 0x20, 0x00, 0x05, 0x00,           // indices
                   0x02, 0x00, 0x00, 0xD7, 0x01, 0x07}));  // 7 and -3, 1, padding; 7
}

TEST(WireFormat, TopKWithTwoBitsPacksFourCodes) {
  std::vector<float> x(2 * kChunk);
  x[1] = 2.0f;
  x[2] = -2.0f;
  x[5] = 0.5f;
  x[kChunk + 2] = 1.75f;
  const Bytes shared = {3, 0, 1, 0};
  const Bytes indices = {0x01, 0x20, 0x00, 0x05, 0x00, 0x02, 0x00, 0x00};
  const auto with = [&](const Bytes& scales, const Bytes& values) {
    Bytes body = shared;
    body.insert(body.end(), scales.begin(), scales.end());
    body.insert(body.end(), indices.begin(), indices.end());
    body.insert(body.end(), values.begin(), values.end());
    return body;
  };
  // bf16 scales 2 and 1.75; 1 and -1, a quarter of the largest is 0; 1.
  EXPECT_EQ(body_of(encode("topk:0.0004,2bit", x)), with({0, 0x40, 0xE0, 0x3F}, {0x0D, 0x01}));
  EXPECT_EQ(encode("topk:0.0004,2bit", x)[6], std::byte{6});
  // Means 1.5 and 1.75; the second of three is negative.
  EXPECT_EQ(body_of(encode("topk:0.0004,1bit", x)), with({0xC0, 0x3F, 0xE0, 0x3F}, {0x02, 0x00}));
  EXPECT_EQ(encode("topk:0.0004,1bit", x)[6], std::byte{7});
}

TEST(WireFormat, RunsHaveScalesInBrainFloats) {
  const auto run = [](int count, Bytes scale, int bitmap, Bytes values) {
    Bytes body = {count, 0, 0, 0, scale[0], scale[1], 0, 0, bitmap, 0, 0, 0};
    body.insert(body.end(), values.begin(), values.end());
    return body;
  };
  // Means between two: 1 + 2^-8 to the even 1, 1 + 3 * 2^-8 to the even 1 + 2^-6.
  EXPECT_EQ(body_of(encode("topk:100%,1bit", {1, 1.0078125f})), run(2, {0x80, 0x3F}, 3, {0}));
  EXPECT_EQ(body_of(encode("topk:100%,1bit", {-1.0078125f, 1.015625f})),
            run(2, {0x82, 0x3F}, 3, {1}));
  // A sum that overflows; a mean below the smallest brain float has no bits.
  EXPECT_EQ(body_of(encode("topk:100%,1bit", {3e38f, -3e38f})), run(2, {0x62, 0x7F}, 3, {2}));
  EXPECT_EQ(body_of(encode("topk:100%,1bit", {-1e-44f})), run(1, {0, 0}, 1, {0}));
  // Codes that are drawn, of values that lie on them: 1, -1/2 and 1/4 of the scale 4; 7 sevenths of
  // the norm; -2 halves of it; 1 and -1.
  EXPECT_EQ(body_of(encode("topk:100%,natural", {4, -2, 1})),
            run(3, {0x80, 0x40}, 7, {0x7E, 0xFD, 0x7C}));
  EXPECT_EQ(encode("topk:100%,natural", {4})[6], std::byte{10});
  EXPECT_EQ(body_of(encode("topk:100%,qsgd:7", {7})), run(1, {0x80, 0x3F}, 1, {0x07}));
  EXPECT_EQ(body_of(encode("topk:100%,qsgd:2", {-2})), run(1, {0x80, 0x3F}, 1, {0x0E}));
  EXPECT_EQ(body_of(encode("topk:100%,ternary", {2, -2})), run(2, {0, 0x40}, 3, {0x0D}));
}

TEST(WireFormat, RandomKIsValuesBehindTheDraw) {
  std::vector<float> x(kChunk + 3, 1.0f);
  Rig rig("randomk:2/4096,int4", {.numel = x.size(), .seed = 1});
  OwnedTensor g = tensor_of(x, DType::kFloat32);
  const auto payload = rig.compress(g, {}, {});
  EXPECT_EQ(payload[5], std::byte{4});
  EXPECT_EQ(std::to_integer<int>(payload[16]) + 256 * std::to_integer<int>(payload[17]), 4099);
  // bf16 scales rounded up from 1/7, two codes of 7; one code and a zero nibble.
  EXPECT_EQ(body_of(payload), (Bytes{0x13, 0x3E, 0x77, 0x13, 0x3E, 0x07}));
  EXPECT_EQ(body_of(encode("randomk:2/4096", x)), (Bytes{0, 0, 0x80, 0x3F, 0, 0, 0x80, 0x3F,  //
                                                         0, 0, 0x80, 0x3F}));
}

TEST(WireFormat, MaximaBelowTheSmallestCountAsZero) {
  EXPECT_EQ(body_of(encode("int8,block=8", {3.6e-37f})), (Bytes{0, 0, 0, 0, 0}));
  EXPECT_EQ(body_of(encode("topk:100%,int8", {3.6e-37f})),
            (Bytes{1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}));
}

TEST(WireFormat, DenseSelectionsUseABitmap) {
  EXPECT_EQ(body_of(encode("topk:25%,bf16", {0, 3, 0, 0, 0, 0, 0, 0, 0, -1, 2, 0})),
            (Bytes{3, 0, 0, 0, 0x02, 0x06, 0, 0, 0x40, 0x40, 0x80, 0xBF, 0x00, 0x40}));
}

TEST(WireFormat, TopKScaleIsRoundedUpSoThatCodesFit) {
  for (const float maximum : {1.0f, 1.01f, 5.7f, 1e-20f, 123456.0f, 3.4e38f, 4e-37f}) {
    const std::vector<float> x = {maximum, -maximum, maximum / 2};
    Rig rig("topk:100%,int4", {.numel = 3});
    OwnedTensor g = tensor_of(x, DType::kFloat32);
    const auto decoded = rig.decompress({rig.compress(g, {}, {})}).floats();
    EXPECT_NEAR(decoded[0] / maximum, 1.0, 0.08) << maximum;
    EXPECT_EQ(decoded[0], -decoded[1]);
  }
}

std::string message_of(Rig& rig, const std::vector<std::vector<std::byte>>& parts) {
  try {
    rig.decompress(parts);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(HostileBytes, TheMessageNamesPartAndField) {
  const size_t numel = 8 * kChunk;
  Rig rig("topk:1%,int8", {.numel = numel});
  OwnedTensor g = tensor_of(normal(numel, 5), DType::kFloat32);
  const auto good = rig.compress(g, {}, {});
  const auto with = [&](size_t at, std::vector<int> bytes) {
    auto bad = good;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bad[at + i] = static_cast<std::byte>(bytes[i]);
    }
    return message_of(rig, {good, good, bad});
  };
  EXPECT_EQ(message_of(rig, {good, good, good}), "accepted");
  EXPECT_EQ(with(32 + 14, {0x88, 0x13}),
            "payload part 2: count of chunk 7 is 5000, must be at most 4096");
  EXPECT_EQ(with(0, {'X'}), "payload part 2: payload: magic is 827806296, must be 827806279");
  EXPECT_EQ(with(4, {2}), "payload part 2: payload: version is 2, must be 1");
  EXPECT_EQ(with(5, {1}), "payload part 2: format is 1, must be 3");
  EXPECT_EQ(with(6, {4}), "payload part 2: value codec is 4, must be 3");
  EXPECT_EQ(with(7, {6}), "payload part 2: flags are 6, must be 0 or 1");
  EXPECT_EQ(with(8, {1, 2, 3, 4}).substr(0, 51),
            "payload part 2: spec fingerprint is 67305985, must ");
  EXPECT_EQ(with(12, {1}),
            "payload part 2: covers 32768 elements from 4096 on, must lie within 32768");
  EXPECT_EQ(with(16, {1}),
            "payload part 2: covers 32769 elements from 0 on, must lie within 32768");
  EXPECT_EQ(with(16, {1, 0x7F}),
            "payload part 2: ends at element 32513, must end on a multiple of 4096 or at 32768");
  EXPECT_EQ(with(20, {5}), "payload part 2: variant is 5, must be at most 0");
  EXPECT_EQ(with(48, {0x80, 0x7F}),
            "payload part 2: scale of chunk 0 is inf, must be finite and not negative");
  EXPECT_EQ(with(64, {0xFF, 0xFF, 0xFF}).substr(0, 40), "payload part 2: index in chunk 0 is 4095");
}

/// Decompresses, slices and merges; anything but success or InvalidArgument fails the test.
void survive(Rig& rig, const std::vector<std::byte>& bytes) {
  const Region half{0, kChunk};
  try {
    rig.decompress({bytes});
    rig.slice(bytes, half);
    rig.merge({bytes}, {0, rig.numel()}, 1.0f, {});
  } catch (const InvalidArgument&) {
  }
}

TEST(HostileBytes, NeverReadOutOfBounds) {
  constexpr uint64_t kSeed = 4711;
  for (const std::string& spec : all_specs()) {
    SCOPED_TRACE(concat(spec, ", seed ", kSeed));
    const size_t numel = 2 * kChunk + 300;
    Rig rig(spec, {.numel = numel, .seed = kSeed});
    OwnedTensor g = tensor_of(normal(numel, kSeed), DType::kFloat32);
    const auto good = rig.compress(g, {}, {});
    std::mt19937_64 random(kSeed);
    for (int round = 0; round < 300; ++round) {
      auto bad = good;
      const int flips = 1 + static_cast<int>(random() % 4);
      for (int i = 0; i < flips; ++i) {
        // Half of them in the header and the first counts, where most of the structure is.
        const size_t range = random() % 2 == 0 ? std::min<size_t>(64, bad.size()) : bad.size();
        bad[random() % range] ^= static_cast<std::byte>(1u << (random() % 8));
      }
      if (random() % 4 == 0) {
        bad.resize(random() % (bad.size() + 1));
        bad.shrink_to_fit();  // so that a read past the end is a read past the allocation
      }
      survive(rig, bad);
    }
  }
}

TEST(HostileBytes, EveryTruncationOfTheHeaderIsRefused) {
  const auto good = encode("int8", std::vector<float>(300, 1.0f));
  Rig rig("int8", {.numel = 300});
  for (size_t length = 0; length < good.size(); ++length) {
    const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<long>(length));
    EXPECT_NE(message_of(rig, {cut}), "accepted") << length;
  }
}

}  // namespace
}  // namespace gradwire::testing
