#pragma once
// One rank that takes steps with two_shot, for tests.

#include "tests/comm/exchange_case.h"

namespace gradwire::test {

inline CompressorShape shape_of(size_t numel, int rank) {
  CompressorShape shape;
  shape.numel = numel;
  shape.rank = rank;
  return shape;
}

/// One rank's gradients, residuals and exchange over several steps.
struct Rank {
  Rank(const CompressorSpec& spec, Transport& transport, size_t numel)
      : compressor(make_compressor(spec, shape_of(numel, transport.rank()))),
        exchange(make_exchange("two_shot", {{compressor.get()}, &transport, {3, "bucket 1"}})),
        residual{std::vector<float>(numel), std::vector<float>(numel)},
        payload(compressor->capacity_bytes()),
        gradient(numel) {}

  /// One step that is committed; `gradient` becomes the mean unless it is to stay as payloads.
  void step(std::span<float> mean) {
    ConstGradient given = view_of(std::span<const float>(gradient));
    compressor->compress(given, residual[parity], residual[1 - parity], payload, context);
    stream->wait();
    std::memcpy(&payload_bytes, payload.data() + 24, 8);
    const GroupSlot slot{compressor.get(), payload, residual[1 - parity], view_of(mean)};
    exchange->run({&slot, 1}, report, context);
    stream->wait();
    compressor->commit();
    parity = 1 - parity;
  }

  std::unique_ptr<Stream> stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  std::unique_ptr<Compressor> compressor;
  std::unique_ptr<Exchange> exchange;
  std::vector<float> residual[2];
  std::vector<std::byte> payload;
  std::vector<float> gradient;
  size_t payload_bytes = 0, parity = 0;
  ExchangeReport report;
};

}  // namespace gradwire::test
