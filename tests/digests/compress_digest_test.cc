// Every compressor's bytes are those that were recorded: on every instruction set, and on the
// emulated GPU, for which tests/simt compiles this file once more.

#include "tests/digests/cases.h"
#include "tests/digests/recorded.h"
#include "tests/kernels/compress_cases.h"
#if !defined(GRADWIRE_LAWS_ON_DEVICE)
#include "tests/support/isa_paths.h"
#endif

namespace gradwire::digests {
namespace {

using testing::OwnedTensor;
using testing::Rig;
using Bytes = std::vector<std::byte>;

constexpr int kRanks = 2;

/// A matrix and a vector behind it.
std::vector<Segment> segments_of(size_t numel) {
  const size_t rows = matrix_rows(numel);
  if (rows == 0) {
    return {};
  }
  const size_t matrix = numel / rows * rows;
  std::vector<Segment> segments = {
      {.parameter = 4, .offset_in_parameter = 0, .numel = matrix, .rows = rows}};
  if (matrix < numel) {
    segments.push_back(
        {.parameter = 9, .offset_in_parameter = 0, .numel = numel - matrix, .rows = 0});
  }
  return segments;
}

/// One rank's compressor with its residuals.
class Rank {
 public:
  Rank(const std::string& spec, size_t numel, DType dtype, int rank)
      : rig(spec, {.numel = numel,
                   .dtype = dtype,
                   .segments = segments_of(numel),
                   .seed = kSeed,
                   .rank = rank,
                   .world_size = kRanks}),
        feedback_(parse_spec(spec).feedback.on),
        e_(feedback_ ? numel : 0),
        next_(feedback_ ? numel : 0) {}

  Bytes compress(const OwnedTensor& g) { return rig.compress(g, e_, next_); }
  Bytes compress_second(const OwnedTensor& g) { return rig.compress_second(g, e_, next_); }
  void commit() {
    rig.commit();
    std::swap(e_, next_);
  }
  const std::vector<float>& next() const { return next_; }

  Rig rig;

 private:
  bool feedback_;
  std::vector<float> e_, next_;
};

/// What `action` gives, or that it was refused.
template <class Action>
void add_or_refused(Hash& hash, const std::string& name, const Action& action) {
  try {
    action();
  } catch (const InvalidArgument&) {
    hash.add(name, std::string("refused"));
  }
}

/// Slices of all ranks' payloads by two chunks at a time, merged again.
void add_slices(Hash& hash, const std::string& at, std::vector<std::unique_ptr<Rank>>& ranks,
                const std::vector<Bytes>& payloads, size_t numel) {
  for (const Region region : testing::tiles(numel, 2)) {
    const std::string here = concat(at, " region ", region.begin);
    add_or_refused(hash, here, [&] {
      std::vector<Bytes> slices;
      for (size_t r = 0; r < payloads.size(); ++r) {
        slices.push_back(ranks[r]->rig.slice(payloads[r], region));
        hash.add(concat(here, " slice ", r), slices.back());
      }
      std::vector<float> kept = ranks[0]->next();
      hash.add(here + " merged", ranks[0]->rig.merge(slices, region, 0.5f, kept));
      hash.add(here + " put back", kept);
    });
  }
}

/// What gradients that were accumulated into the residual become, and back.
void add_accumulated(Hash& hash, const std::string& at, Rank& rank, const OwnedTensor& g) {
  add_or_refused(hash, at + " accumulated", [&] {
    std::vector<float> x = g.floats();
    const Bytes payload = rank.rig.compress_accumulated(x);
    hash.add(at + " accumulated", payload);
    hash.add(at + " left", x);
    rank.rig.restore(payload, x);
    hash.add(at + " restored", x);
  });
}

void add_size(Hash& hash, const std::string& spec, DType dtype, size_t numel, int steps) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.push_back(std::make_unique<Rank>(spec, numel, dtype, r));
  }
  const CompressorSpec parsed = parse_spec(spec);
  for (int step = 0; step < steps; ++step) {
    const std::string at = concat(numel, " step ", step);
    std::vector<OwnedTensor> g;
    std::vector<Bytes> payloads;
    for (int r = 0; r < kRanks; ++r) {
      g.push_back(testing::tensor_of(gradient(numel, r, step), dtype));
      payloads.push_back(ranks[static_cast<size_t>(r)]->compress(g.back()));
    }
    if (ranks[0]->rig.compressor().rounds() == 2) {
      for (size_t r = 0; r < payloads.size(); ++r) {
        hash.add(concat(at, " first payload ", r), payloads[r]);
      }
      const std::vector<Bytes> first = payloads;
      for (size_t r = 0; r < payloads.size(); ++r) {
        ranks[r]->rig.take_first(first, 0.5f);
        payloads[r] = ranks[r]->compress_second(g[r]);
      }
    }
    for (size_t r = 0; r < payloads.size(); ++r) {
      hash.add(concat(at, " payload ", r), payloads[r]);
      hash.add(concat(at, " e_next ", r), ranks[r]->next());
    }
    hash.add(at + " mean", ranks[0]->rig.decompress(payloads, 0.5f).bytes);
    ranks[1]->rig.decompress(payloads, 0.5f);  // low rank learns from what it decodes
    if (step + 1 == steps) {
      add_slices(hash, at, ranks, payloads, numel);
    }
    for (const auto& rank : ranks) {
      rank->commit();
    }
    if (step + 1 == steps) {
      if (keeps_velocity(parsed)) {
        hash.add(at + " velocity", ranks[0]->rig.velocity());
      }
      add_accumulated(hash, at, *ranks[0], g[0]);
    }
  }
}

std::string digest(const std::string& spec, DType dtype, bool is_long) {
  Hash hash;
  if (is_long) {
    add_size(hash, spec, dtype, kLongSize, kLongSteps);
    return hash.text();
  }
  for (const size_t numel : kSizes) {
    add_size(hash, spec, dtype, numel, kSteps);
  }
  return hash.text();
}

Columns columns_of(const std::string& spec, bool with_long) {
  Columns columns;
  for (const DType dtype : kDTypes) {
    columns.push_back(digest(spec, dtype, false));
  }
  columns.push_back(with_long ? digest(spec, DType::kFloat32, true) : "-");
  return columns;
}

constexpr const char* kHead =
    "# spec | digests of float32, float16, bfloat16, and of float32 over 200 steps (README.md)\n";

#if defined(GRADWIRE_LAWS_ON_DEVICE)

TEST(CompressDigests, OfTheGpuAreThoseRecorded) {
  Recorded recorded("compress.txt");
  const bool soaks = !variable("GRADWIRE_SOAK").empty();
  for (const std::string& spec : drawn(specs(), 5)) {
    recorded.expect(spec, columns_of(spec, soaks), "the GPU");
  }
}

#else

void compare_on(cpu::Isa path) {
  if (path > cpu::best_isa()) {
    GTEST_SKIP() << "this machine has no " << testing::name_of(path);
  }
  const cpu::IsaLimit limit(path);
  Recorded recorded("compress.txt");
  recorded.expect_rows(specs());
  for (const std::string& spec : drawn(specs(), 40)) {
    recorded.expect(spec, columns_of(spec, true), testing::name_of(path));
  }
  recorded.write(kHead);
}

TEST(CompressDigests, OfPlainCodeAreThoseRecorded) { compare_on(cpu::Isa::kPlain); }
TEST(CompressDigests, OfAvx2AreThoseRecorded) { compare_on(cpu::Isa::kAvx2); }
TEST(CompressDigests, OfAvx512AreThoseRecorded) { compare_on(cpu::Isa::kAvx512); }

TEST(SpecDigests, TextsAndFingerprintsAreThoseRecorded) {
  Recorded recorded("specs.txt");
  std::vector<std::string> names = reducer_specs();
  for (const CompressorRow& row : compressor_registry()) {
    names.push_back(concat("example ", row.example));
  }
  recorded.expect_rows(names);
  for (const std::string& name : names) {
    const CompressorSpec spec =
        parse_spec(name.starts_with("example ") ? std::string_view(name).substr(8) : name);
    EXPECT_EQ(parse_spec(to_string(spec)), spec) << name;
    recorded.expect(name, {to_string(spec), concat(fingerprint(spec))}, "every machine");
  }
  recorded.write("# spec | its text, its fingerprint\n");
}

// A row of the registry that no digest covers could change unseen.
TEST(SpecDigests, CoverEveryRowOfTheRegistry) {
  const std::vector<std::string> all = specs();
  for (const CompressorRow& row : compressor_registry()) {
    EXPECT_TRUE(std::ranges::any_of(
        all, [&](const std::string& spec) { return parse_spec(spec).name == row.name; }))
        << row.name;
  }
}

#endif

}  // namespace
}  // namespace gradwire::digests
