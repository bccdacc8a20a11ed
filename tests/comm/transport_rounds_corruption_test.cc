// A byte that changes between two ranks in any message of a collective in rounds: every rank gets a
// TransportError, and none gets a sum or a part that it changed.

#include <ostream>

#include "tests/comm/corrupting_engine.h"
#include "tests/comm/verb_data.h"
#include "tests/support/ranks.h"

namespace gradwire::transport_test {
namespace {

/// A collective in rounds on so many ranks, with messages of several chunks.
struct RoundsCase {
  const char* name;
  int ranks;
  std::function<std::vector<float>(Rank)> run;  ///< returns what it delivered
};

void PrintTo(const RoundsCase& c, std::ostream* out) { *out << c.name << c.ranks; }

RoundsCase reduce(const char* name, int ranks, AllReduce algorithm) {
  return {name, ranks, [=](Rank self) {
            std::vector<float> values = values_of(self.rank, 150'001);
            self.transport.all_reduce_sum(values, by(algorithm), self.context);
            self.context.stream.wait();
            return values;
          }};
}

RoundsCase gather(const char* name, int ranks, AllGather algorithm) {
  return {name, ranks, [=](Rank self) {
            const std::vector<float> mine = values_of(self.rank, 50'000);
            const size_t length = 4 * mine.size(), size = static_cast<size_t>(self.size);
            std::vector<float> all(mine.size() * size);
            std::vector<size_t> lengths(size);
            self.transport.all_gather(length, std::as_bytes(std::span(mine)),
                                      {std::as_writable_bytes(std::span(all)), length, lengths},
                                      by(algorithm), self.context);
            self.context.stream.wait();
            return all;
          }};
}

class RoundsCorruption : public testing::TestWithParam<RoundsCase> {
 protected:
  struct Outcome {
    std::vector<test::RankEnd> ends;
    std::vector<std::vector<float>> delivered;  // to each rank that got as far
    size_t messages = 0;                        // that rank 0 received meanwhile
  };

  /// One byte changes on its way to rank 0; afterwards all ranks meet once more.
  static Outcome run_corrupted(size_t message, size_t place) {
    const test::CorruptedGroup group(GetParam().ranks, message, place);
    Outcome outcome;
    outcome.delivered.resize(group.ranks.size());
    outcome.ends = test::run_threads(GetParam().ranks, [&](int r) {
      const auto stream = make_inline_stream();
      Workspace workspace;
      Context context{*stream, workspace};
      outcome.delivered[static_cast<size_t>(r)] =
          GetParam().run({group[r], context, r, GetParam().ranks});
      if (r == 0) {
        outcome.messages = group.engine->received();
      }
      group[r].barrier({}, context);
      stream->wait();
    });
    return outcome;
  }
};

TEST_P(RoundsCorruption, IsAnErrorOnEveryRankAndNoneUsesTheBytes) {
  const Outcome clean = run_corrupted(test::kNowhere, 0);
  ASSERT_EQ(test::first_message(clean.ends), "");
  ASSERT_GE(clean.messages, 10u) << "rounds of a header, chunks and their checksums";
  for (size_t message = 0; message < clean.messages; ++message) {
    for (const size_t place : {size_t{0}, test::kMiddleByte, test::kLastByte}) {
      SCOPED_TRACE(testing::Message() << "message " << message << ", byte " << place);
      const Outcome outcome = run_corrupted(message, place);
      EXPECT_TRUE(outcome.delivered[0].empty()) << "rank 0 took what had changed";
      EXPECT_NE(outcome.ends[0].message.find(" of a test: rank "), std::string::npos)
          << outcome.ends[0].message;
      for (size_t r = 0; r < outcome.ends.size(); ++r) {
        EXPECT_TRUE(outcome.ends[r].threw<TransportError>()) << "rank " << r;
        // Who had all its messages before rank 0 saw the fault has the right result.
        EXPECT_TRUE(outcome.delivered[r].empty() || outcome.delivered[r] == clean.delivered[r])
            << "rank " << r << " took what had changed";
      }
      if (HasFailure()) {
        return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Algorithms, RoundsCorruption,
    testing::Values(reduce("ring_", 3, AllReduce::kRing),
                    reduce("rabenseifner_", 3, AllReduce::kRabenseifner),
                    reduce("rabenseifner_", 4, AllReduce::kRabenseifner),
                    gather("ring_gather_", 3, AllGather::kRing),
                    gather("bruck_", 4, AllGather::kBruck)),
    [](const auto& p) { return concat(p.param.name, p.param.ranks); });

}  // namespace
}  // namespace gradwire::transport_test
