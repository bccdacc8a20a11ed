// A byte that changes between two ranks, in every place of every exchange's messages: an error that
// names a rank, or no difference at all.

#include <gtest/gtest.h>

#include "tests/comm/corrupting_engine.h"
#include "tests/comm/exchange_case.h"

namespace gradwire::test {
namespace {

struct Outcome {
  std::vector<RankEnd> ends;
  std::vector<std::vector<std::byte>> means;  // of each rank that returned
};

Outcome run_corrupted(const ExchangeCase& c, size_t message, size_t place) {
  const CorruptedGroup group(c.world_size, message, place);
  Outcome outcome;
  outcome.means.resize(group.ranks.size());
  outcome.ends = run_threads(c.world_size, [&](int r) {
    Transport& transport = group[r];
    try {
      const RankResult result = exchange_on_rank(c, transport);
      const auto stream = make_inline_stream();  // whoever was served before learns it here
      Workspace workspace;
      Context context{*stream, workspace};
      transport.barrier({1, "the end"}, context);
      stream->wait();
      outcome.means[static_cast<size_t>(r)] = result.groups[0].mean;
    } catch (const std::exception& error) {
      transport.abort(error.what());
      throw;
    }
  });
  return outcome;
}

CompressorSpec first_accepted(const ExchangeRow& row) {
  return accepted_specs(row, DType::kFloat32).at(0);
}

TEST(Corruption, AFlippedBitInAnyMessageIsAnErrorOrChangesNothing) {
  // The header, its fields, the payload's header, values, and bytes behind the end.
  const size_t places[] = {0, 9, 33, 49, 63, 64, 70, 88, 96, 131, 1000, 4000, 8191};
  for (const ExchangeRow& row : exchange_registry()) {
    if (row.by_node) {
      continue;  // it sends nothing of its own: its verbs and the exchange within it are the others'
    }
    const ExchangeCase c{.exchange = std::string(row.name),
                         .specs = {first_accepted(row)},
                         .numels = {1900},
                         .world_size = 3};
    SCOPED_TRACE(c.text());
    const Outcome clean = run_corrupted(c, kNowhere, 0);
    ASSERT_EQ(first_message(clean.ends), "");
    size_t errors = 0;
    for (size_t message = 0; message < 8; ++message) {
      for (const size_t place : places) {
        const Outcome outcome = run_corrupted(c, message, place);
        if (outcome.ends[0].error) {
          ++errors;
          EXPECT_TRUE(outcome.ends[0].threw<TransportError>()) << outcome.ends[0].message;
          for (size_t r = 0; r < outcome.ends.size(); ++r) {
            // One that had all its messages before rank 0 saw the fault has the right result.
            if (outcome.ends[r].error) {
              const std::string& said = outcome.ends[r].message;
              EXPECT_NE(said.find("rank "), std::string::npos) << said;
            } else {
              EXPECT_EQ(outcome.means[r], clean.means[r]);
            }
          }
        } else {
          EXPECT_EQ(outcome.means[0], clean.means[0])
              << "byte " << place << " of message " << message << " changed the result unseen";
        }
      }
    }
    EXPECT_GE(errors, 12u) << "the messages carry more than that";
  }
}

TEST(Corruption, AChunkThatChangedNamesItsRank) {
  // 600 000 bytes travel as message 0 and several chunks.
  const size_t bytes = 600'000, place = 60'000;
  for (const size_t message : {2u, 3u, 4u, 6u}) {  // 0 and 1 are the first messages of both peers
    const CorruptedGroup group(3, message, place);
    const auto ends = run_threads(3, [&](int r) {
      const auto stream = make_inline_stream();
      Workspace workspace;
      Context context{*stream, workspace};
      std::vector<std::byte> mine(bytes, std::byte{7}), all(3 * bytes);
      std::vector<size_t> lengths(3);
      Transport& transport = group[r];
      transport.all_gather(bytes, mine, {all, bytes, lengths}, {7, "bucket 0"}, context);
      transport.barrier({}, context);
      stream->wait();
    });
    ASSERT_TRUE(ends[0].threw<TransportError>());
    EXPECT_NE(ends[0].message.find("all_gather of bucket 0: rank "), std::string::npos);
    EXPECT_NE(ends[0].message.find("'s payload of 600000 bytes changed on the way: its checksum is"),
              std::string::npos)
        << ends[0].message;
  }
}

}  // namespace
}  // namespace gradwire::test
