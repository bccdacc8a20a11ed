// Payloads that are not what the exchange expects, and gradients that are not finite.

#include <gtest/gtest.h>

#include <limits>

#include "gradwire/comm/reducer.h"
#include "tests/comm/exchange_case.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/wrapped_transport.h"

namespace gradwire::test {
namespace {

/// What a fault does to rank 1's part as rank 0 receives it, and what rank 0 must say.
struct Fault {
  const char* name;
  std::function<void(Parts)> inflict;
  std::string words;
};

template <class T>
std::function<void(Parts)> overwrite(size_t offset, T value) {
  return [=](Parts parts) { std::memcpy(parts.part(1).data() + offset, &value, sizeof value); };
}

/// Rows whose messages are payloads: the others send the floats of a sum, which have no header.
std::vector<ExchangeRow> rows_of_payloads() {
  std::vector<ExchangeRow> rows = flat_exchanges();
  std::erase_if(rows, [](const ExchangeRow& row) {
    return !accepts(row, parse_spec("bf16"), DType::kFloat32);
  });
  return rows;
}

std::vector<Fault> header_faults() {
  return {{"magic", overwrite<uint32_t>(0, 7), "magic is 7"},
          {"version", overwrite<uint8_t>(4, 99), "version is 99"},
          {"format", overwrite<uint8_t>(5, 77), "format is 77"},
          {"fingerprint", overwrite<uint32_t>(8, 1), "spec fingerprint is 1, expected"},
          {"first chunk", overwrite<uint32_t>(12, 3), "begins at chunk 3, expected 0"},
          {"numel", overwrite<uint64_t>(16, 4096), "covers 4096 elements, expected "},
          {"length beyond the message", overwrite<uint64_t>(24, 1u << 30), "length is 1073741824"},
          {"length below the header", overwrite<uint64_t>(24, 8), "length is 8"},
          {"empty message", [](Parts parts) { parts.lengths[1] = 0; }, "length is 0"},
          {"cut message", [](Parts parts) { parts.lengths[1] -= 1; }, "must be 32 to"}};
}

// Runs one exchange on two ranks; rank 0 receives the fault. Returns what rank 0 threw.
RankEnd run_with_fault(const ExchangeCase& c, const Fault& fault) {
  bool inflicted = false;
  const auto ends = run_ranks(2, [&](Transport& transport) {
    WrappedTransport wrapped(transport, [&](Parts parts) {
      if (transport.rank() == 0 && !inflicted) {
        inflicted = true;
        fault.inflict(parts);
      }
    });
    try {
      exchange_on_rank(c, wrapped);
    } catch (const TransportError& error) {
      transport.abort(error.what());
      throw;
    }
  });
  return ends[0];
}

TEST(ExchangeRows, SayWhatTheyDoNotCarryOnAGpu) {
  for (const ExchangeRow& row : exchange_registry()) {
    bool all = row.on_gpu != nullptr;
    for (const CompressorRow& compressor : compressor_registry()) {
      all = all && row.on_gpu(parse_spec(compressor.example));
    }
    EXPECT_EQ(row.not_on_gpu.empty(), all) << row.name;
  }
}

TEST(ExchangeFaults, APayloadThatIsNotWhatWasAgreedNamesItsRankAndBucket) {
  for (const ExchangeRow& row : rows_of_payloads()) {
    for (const Fault& fault : header_faults()) {
      const ExchangeCase c{.exchange = std::string(row.name),
                           .specs = {carried_spec(row)},
                           .numels = {9000},
                           .world_size = 2};
      SCOPED_TRACE(concat(row.name, ", ", fault.name));
      const RankEnd end = run_with_fault(c, fault);
      ASSERT_TRUE(end.threw<TransportError>()) << end.message;
      EXPECT_TRUE(contains(end.message, "bucket 7: rank 1's payload")) << end.message;
      EXPECT_TRUE(contains(end.message, fault.words)) << end.message;
      try {
        std::rethrow_exception(end.error);
      } catch (const TransportError& error) {
        EXPECT_EQ(error.peer(), 1);
      }
    }
  }
}

TEST(ExchangeFaults, BytesBehindTheLastPayloadAreRefused) {
  for (const ExchangeRow& row : rows_of_payloads()) {
    const ExchangeCase c{.exchange = std::string(row.name),
                         .specs = {carried_spec(row)},
                         .numels = {8192},
                         .world_size = 2};
    const Fault fault{"claims to be shorter", overwrite<uint64_t>(24, 32), ""};
    const RankEnd end = run_with_fault(c, fault);
    const size_t body = row.name == "gather" || row.name == "gtopk" ? 16384 : 8192;  // or half
    EXPECT_TRUE(end.threw<TransportError>());
    EXPECT_EQ(end.message, concat("bucket 7: rank 1's message has ", body,
                                  " bytes behind its last payload, expected none"));
  }
}

TEST(ExchangeFaults, ABodyThatDoesNotDecodeNamesItsRank) {
  const ExchangeCase c{.exchange = "gather",
                       .specs = {parse_spec("bf16"), parse_spec("topk:1%")},
                       .numels = {100, 9000},
                       .world_size = 2};
  const Fault fault{"counts", overwrite<uint16_t>(32 + 200 + 32, 0xFFFF), ""};
  const RankEnd end = run_with_fault(c, fault);
  ASSERT_TRUE(end.threw<TransportError>()) << end.message;
  EXPECT_TRUE(contains(end.message, "bucket 7: rank 1's payload")) << end.message;
}

TEST(ExchangeFaults, AReducerNamesTheBucketAndEveryRankHearsIt) {
  for (const char* spec : {"fp16", "int8"}) {
    SCOPED_TRACE(spec);
    std::vector<std::string> said(3);
    const auto ends = run_ranks(3, [&](Transport& transport) {
      int calls = 0;
      WrappedTransport wrapped(transport, [&](Parts parts) {
        if (transport.rank() == 2 && ++calls == 4) {  // after the plan's digests
          overwrite<uint32_t>(0, 5)(parts);
        }
      });
      Reducer reducer(plan_of(spec), wrapped);
      hand_over(reducer, gradients(transport.rank(), 0));
      said[static_cast<size_t>(transport.rank())] =
          message_of<TransportError>([&] { reducer.wait(); });
    });
    EXPECT_EQ(first_message(ends), "");
    for (const std::string& words : said) {
      EXPECT_TRUE(contains(words, "rank 1's payload of group 0: payload: magic is 5")) << words;
      EXPECT_TRUE(contains(words, "bucket ")) << words;
      EXPECT_TRUE(contains(words, concat(", ", spec == std::string("fp16") ? "fp16" : "bf16")) ||
                  contains(words, spec))
          << words;
    }
  }
}

TEST(ExchangeFaults, EveryRankLearnsTheLowestRankThatWasNotFinite) {
  for (const ExchangeRow& row : flat_exchanges()) {
    for (const size_t numel : {size_t{5}, size_t{40000}}) {
      SCOPED_TRACE(concat(row.name, " ", numel));
      std::vector<int> found(4, -2);
      const auto ends = run_ranks(4, [&](Transport& transport) {
        const auto stream = make_inline_stream();
        Workspace workspace;
        Context context{*stream, workspace};
        CompressorShape shape;
        shape.numel = numel;
        const auto compressor = make_compressor(carried_spec(row), shape);
        const auto exchange =
            make_exchange(row.name, {{compressor.get()}, &transport, {1, "bucket 0"}});
        std::vector<float> gradient(numel, 1.0f);
        if (transport.rank() >= 2) {
          gradient[3] = std::numeric_limits<float>::quiet_NaN();
        }
        std::vector<std::byte> payload(compressor->capacity_bytes());
        const GroupSlot slot{compressor.get(), payload, {}, view_of(std::span(gradient))};
        compressor->compress(slot.mean, {}, {}, payload, context);
        ExchangeReport report;
        exchange->run({&slot, 1}, report, context);
        stream->wait();
        found[static_cast<size_t>(transport.rank())] = report.nonfinite_rank;
      });
      EXPECT_EQ(first_message(ends), "");
      EXPECT_EQ(found, (std::vector<int>{2, 2, 2, 2}));
    }
  }
}

TEST(ExchangeFaults, UnknownNamesAndCompressorsThatDoNotFitAreRefused) {
  const auto group = make_in_process_group(1);
  CompressorShape shape;
  shape.numel = 10;
  const auto compressor = make_compressor(parse_spec("int8"), shape);
  const auto made = [&](std::string_view name) {
    return message_of<InvalidArgument>(
        [&] { make_exchange(name, {{compressor.get()}, group[0].get(), {}}); });
  };
  std::string known = "exchange: unknown name 'telepathy', known:";
  for (const ExchangeRow& row : exchange_registry()) {
    known += concat(&row == exchange_registry().data() ? " " : ", ", row.name);
  }
  EXPECT_EQ(made("telepathy"), known);
  EXPECT_EQ(
      made("dense"),
      "exchange 'dense': cannot carry 'int8', expected values of 16 bits or more of the same "
      "elements (none, fp16, bf16, randomk, powersgd)");
  EXPECT_EQ(message_of<InvalidArgument>([&] { make_exchange("gather", {{}, group[0].get(), {}}); }),
            "exchange 'gather': 0 compressors, expected one per group of the bucket");
}

}  // namespace
}  // namespace gradwire::test
