// Checkpoints that earlier commits wrote load, are written again with the same bytes, and training goes
// on from them to the bit. GRADWIRE_DIGEST_RECORD=COMMIT writes those of this build.

#include "tests/digests/reducer_digests.h"

namespace gradwire::digests {
namespace {

constexpr int kBefore = 6, kBehind = 4;

/// Small, so that the files are.
struct SavedCase {
  std::string spec, exchange;

  std::string name() const { return concat(spec, " ", exchange); }
  static std::vector<ParamInfo> parameters() {
    return {{"matrix", {9, 11}}, {"vector", {40}}, {"scalar", {}}};
  }
  Plan plan() const {
    PlanOptions options;
    options.spec = parse_spec(spec);
    options.exchange = exchange;
    options.seed = kSeed;
    options.bucket_bytes = 300;
    options.ranks_per_node = exchange == "hierarchical" ? 2 : 1;
    return make_plan(parameters(), options);
  }
};

std::vector<SavedCase> cases() {
  return {{"none", "dense"},
          {"none", "ring"},
          {"fp16", "dense"},
          {"int8", "gather"},
          {"int4,stochastic", "two_shot"},
          {"1bit,ef", "gather"},
          {"topk:10%,int4", "gather"},
          {"topk:10%", "gtopk"},
          {"topk:10%,decay=0.9", "two_shot"},
          {"threshold:10%", "two_shot"},
          {"randomk:10%,int8", "gather"},
          {"chunktopk:64/4096,momentum=0.8", "gather"},
          {"dgc:10%,clip=1,warmup=4", "gather"},
          {"powersgd:2", "dense"},
          {"powersgd:2,rounds=2,momentum=0.8", "gather"},
          {"int8,ef21", "two_shot"},
          {"topk:10%,ef21,eta=0.3", "gather"},
          {"topk:10%,int4,residual=bf16", "gather"},
          {"topk:10%,start=3,warmup=2", "gather"},  // there is none of e2c7c1a, which had no start=
          {"int8", "hierarchical"}};
}

void take_steps(Reducer& reducer, int rank, int begin, int end, Hash* hash) {
  for (int step = begin; step < end; ++step) {
    for (size_t left = reducer.plan().parameters.size(); left > 0; --left) {
      const auto p = static_cast<ParamId>(left - 1);
      const auto to = reducer.gradient(p).as<float>();
      std::ranges::copy(gradient(to.size(), rank, step, size_t{p} << 20), to.begin());
      reducer.grad_ready(p);
    }
    reducer.wait();
    for (ParamId p = 0; hash != nullptr && p < reducer.plan().parameters.size(); ++p) {
      const auto mean = reducer.gradient(p).as<float>();
      hash->add(concat("step ", step, " mean of ", p),
                std::vector<float>(mean.begin(), mean.end()));
    }
  }
}

std::string saved(const Reducer& reducer) {
  std::ostringstream out;
  reducer.save(out);
  return out.str();
}

std::string hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

constexpr const char* kHead =
    "# spec exchange | digest of the 4 steps behind the checkpoint | checkpoints of ranks 0 and 1, behind "
    "6 steps\n";

void record(const std::string& file) {
  Recorded recorded(file);
  for (const SavedCase& c : cases()) {
    std::vector<std::string> files(2), digests(2);
    const auto ends = test::run_ranks(2, [&](Transport& transport) {
      const auto rank = static_cast<size_t>(transport.rank());
      Reducer reducer(c.plan(), transport);
      take_steps(reducer, transport.rank(), 0, kBefore, nullptr);
      files[rank] = hex(saved(reducer));
      Hash hash;
      take_steps(reducer, transport.rank(), kBefore, kBefore + kBehind, &hash);
      hash.add("saved", saved(reducer));
      digests[rank] = hash.text();
    });
    ASSERT_EQ(test::first_message(ends), "") << c.name();
    recorded.expect(c.name(), {digests[0], digests[1], files[0], files[1]}, "this build");
  }
  recorded.write(kHead);
}

class SavedCheckpoints : public ::testing::TestWithParam<const char*> {};

TEST_P(SavedCheckpoints, LoadAndGoOnToTheBit) {
  const std::string file = concat("checkpoints/reducer-", GetParam(), ".txt");
  if (variable("GRADWIRE_DIGEST_RECORD") == GetParam()) {
    record(file);
    return;
  }
  const Recorded recorded(file);
  for (const SavedCase& c : cases()) {
    SCOPED_TRACE(c.name());
    const Columns* const row = recorded.find(c.name());
    if (row == nullptr && GetParam() == std::string("e2c7c1a") && c.spec.find("start=") != c.spec.npos) {
      continue;
    }
    ASSERT_TRUE(row != nullptr && row->size() == 4) << file;
    const auto ends = test::run_ranks(2, [&](Transport& transport) {
      const auto rank = static_cast<size_t>(transport.rank());
      Reducer reducer(c.plan(), transport);
      reducer.load([&](int of) -> std::unique_ptr<std::istream> {
        return of < 2 ? std::make_unique<std::istringstream>(
                            bytes_of((*row)[2 + static_cast<size_t>(of)]))
                      : nullptr;
      });
      check(hex(saved(reducer)) == (*row)[2 + rank], "saved again, other bytes");
      Hash hash;
      take_steps(reducer, transport.rank(), kBefore, kBefore + kBehind, &hash);
      hash.add("saved", saved(reducer));
      const std::string digest = hash.text();
      check(digest == (*row)[rank], "goes on to ", digest, ", expected ", (*row)[rank]);
    });
    EXPECT_EQ(test::first_message(ends), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Commits, SavedCheckpoints, ::testing::Values("e2c7c1a", "2c9b3cc"));

}  // namespace
}  // namespace gradwire::digests
