#include "bench/trainer/group_checks.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <vector>

#include "gradwire/kernels/core/error.h"

namespace trainer {

Evaluation evaluate(Mlp& model, const LabelledImages& images, const Standardiser& standardise,
                    gradwire::Transport& transport, gradwire::Context& context) {
  const int ranks = transport.world_size();
  size_t begin = gradwire::shard_begin(images.count, ranks, transport.rank());
  const size_t end = gradwire::shard_begin(images.count, ranks, transport.rank() + 1);
  size_t correct = 0;
  double loss = 0;
  std::vector<uint8_t> labels;
  std::vector<uint32_t> indices;
  while (begin < end) {
    const size_t batch = std::min(model.max_batch(), end - begin);
    indices.resize(batch);
    labels.resize(batch);
    std::iota(indices.begin(), indices.end(), static_cast<uint32_t>(begin));
    gather_examples(images, standardise, indices, model.inputs(), labels);
    loss += model.forward(labels) * static_cast<double>(batch);
    correct += model.correct(labels);
    begin += batch;
  }
  // Counts are exact in float32 up to 2^24 examples.
  std::array<float, 2> sums = {static_cast<float>(correct), static_cast<float>(loss)};
  transport.all_reduce_sum(sums, {.fingerprint = images.count, .what = "evaluation"}, context);
  context.stream.wait();
  const auto count = static_cast<double>(images.count);
  return {.accuracy = sums[0] / count, .loss = sums[1] / count};
}

uint64_t fnv1a(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte b : bytes) {
    hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3;
  }
  return hash;
}

void check_equal_on_all_ranks(uint64_t hash, gradwire::Transport& transport,
                              gradwire::Context& context) {
  const auto ranks = static_cast<size_t>(transport.world_size());
  std::vector<uint64_t> all(ranks);
  std::vector<size_t> lengths(ranks);
  const size_t length = sizeof(hash);
  transport.all_gather(
      length, std::as_bytes(std::span(&hash, 1)),
      {.bytes = std::as_writable_bytes(std::span(all)), .stride = sizeof(hash), .lengths = lengths},
      {.fingerprint = sizeof(hash), .what = "parameter hash"}, context);
  context.stream.wait();
  std::string different;
  for (size_t r = 1; r < ranks; ++r) {
    if (all[r] != all[0]) {
      different += gradwire::concat(different.empty() ? "" : ", ", r, " (", to_hex(all[r]), ")");
    }
  }
  if (!different.empty()) {
    throw gradwire::Error(gradwire::concat("parameters: the hash differs on ranks ", different,
                                           ", expected rank 0's ", to_hex(all[0])));
  }
}

std::string to_hex(uint64_t hash) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << hash;
  return out.str();
}

}  // namespace trainer
