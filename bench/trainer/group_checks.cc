#include "bench/trainer/group_checks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <vector>

#include "bench/trainer/host_verbs.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

using gradwire::concat;

// Enough to find the first difference of any command line a person could read.
constexpr size_t kComparedBytes = size_t{1} << 16;

struct Digest {
  uint64_t hash = 0;
  uint64_t length = 0;
  bool operator==(const Digest&) const = default;
};

// Equal only for equal values, which six digits are not.
std::string shortest(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

std::string listed(std::span<const size_t> numbers) {
  std::string all;
  for (const size_t number : numbers) {
    all += concat(all.empty() ? "" : ",", number);
  }
  return all;
}

uint64_t hash_images(const LabelledImages& images, uint64_t hash) {
  const std::array<uint64_t, 3> size = {images.channels, images.rows, images.columns};
  hash = fnv1a(std::as_bytes(std::span(size)), hash);
  hash = fnv1a(std::as_bytes(std::span(images.pixels)), hash);
  return fnv1a(std::as_bytes(std::span(images.labels)), hash);
}

std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

std::string difference(size_t rank, std::string_view text, std::string_view expected) {
  while (!text.empty() && !expected.empty()) {
    const std::string_view has = take_line(text), should = take_line(expected);
    if (has != should) {
      return concat("rank ", rank, " runs with ", has, ", rank 0 with ", should,
                    ": expected the same on all ranks");
    }
  }
  return concat("rank ", rank, " runs with other options than rank 0 behind their first ",
                kComparedBytes, " bytes, expected the same on all ranks");
}

}  // namespace

Evaluation evaluate(Network& model, Examples& images, gradwire::Transport& transport,
                    gradwire::Context& context) {
  const int ranks = transport.world_size();
  size_t begin = gradwire::shard_begin(images.count(), ranks, transport.rank());
  const size_t end = gradwire::shard_begin(images.count(), ranks, transport.rank() + 1);
  size_t correct = 0;
  double loss = 0;
  std::vector<uint32_t> indices;
  while (begin < end) {
    const size_t batch = std::min(model.max_batch(), end - begin);
    indices.resize(batch);
    std::iota(indices.begin(), indices.end(), static_cast<uint32_t>(begin));
    model.forward(images.take(indices, model.inputs()));
    const BatchResult found = model.last_result();
    loss += found.loss * static_cast<double>(batch);
    correct += found.correct;
    begin += batch;
  }
  // Counts are exact in float32 up to 2^24 examples.
  std::array<float, 2> sums = {static_cast<float>(correct), static_cast<float>(loss)};
  sum_floats(sums, {.fingerprint = images.count(), .what = "evaluation"}, transport, context);
  const auto count = static_cast<double>(images.count());
  return {.accuracy = sums[0] / count, .loss = sums[1] / count};
}

uint64_t fnv1a(std::span<const std::byte> bytes, uint64_t hash) {
  for (const std::byte b : bytes) {
    hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3;
  }
  return hash;
}

std::string common_settings(const Options& o, const DataFolder& data) {
  const uint64_t hash = hash_images(data.test, hash_images(data.train, fnv1a({})));
  // The optimizer before the learning rate, whose default depends on it.
  return concat(
      "--batch-size ", o.batch_size, "\n--epochs ", o.epochs, "\n--max-steps ", o.max_steps,
      "\n--optimizer ", gradwire::to_string(o.optimizer), "\n--learning-rate ",
      shortest(o.learning_rate), "\n--schedule ",
      o.schedule == Schedule::kConstant ? "constant" : "polynomial", "\n--warmup-steps ",
      o.warmup_steps, "\n--local-steps ", o.local_steps, "\n--outer ", gradwire::to_string(o.outer),
      "\n--outer-rate ", shortest(o.outer_learning_rate), "\n--eval-every ", o.eval_every,
      "\n--target-accuracy ", shortest(o.target_accuracy), "\n--stop-at-target ", o.stop_at_target,
      "\n--convolutions ", listed(o.convolutions), "\n--hidden ", listed(o.hidden), "\n--seed ",
      o.seed, "\n--method ", method_text(o), "\n--exchange ", o.exchange, "\n--bucket-kib ",
      o.bucket_kib, "\n--checkpoint-every ", o.checkpoint_every, "\n--resume ", o.resume,
      "\n--checkpoint ", o.checkpoint.empty() ? "no" : "yes", "\n--no-exchange ",
      !o.exchange_gradients, "\ndata: ", data.train.count, " train examples, ", data.test.count,
      " test examples, hash 0x", to_hex(hash), "\n");
}

void check_same_settings(std::string_view settings, gradwire::Transport& transport,
                         gradwire::Context& context) {
  const auto bytes = std::as_bytes(std::span(settings));
  const Digest own{.hash = fnv1a(bytes), .length = bytes.size()};
  const auto digests =
      gather_bytes(std::as_bytes(std::span(&own, 1)), sizeof(Digest),
                   {.fingerprint = sizeof(Digest), .what = "settings"}, transport, context);
  std::vector<Digest> all(static_cast<size_t>(transport.world_size()));
  std::memcpy(all.data(), digests.data(), digests.size());
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const Digest& d) { return d != all[0]; });
  if (other == all.end()) {
    return;
  }
  const auto by_length = [](const Digest& a, const Digest& b) { return a.length < b.length; };
  const size_t longest = std::max_element(all.begin(), all.end(), by_length)->length;
  const size_t stride = std::clamp<size_t>(longest, 1, kComparedBytes);
  const auto texts = gather_bytes(bytes.first(std::min(bytes.size(), stride)), stride,
                                  {.fingerprint = stride, .what = "settings"}, transport, context);
  const auto text_of = [&](size_t r) {
    const auto* begin = reinterpret_cast<const char*>(texts.data() + r * stride);
    return std::string_view(begin, std::min<size_t>(all[r].length, stride));
  };
  const auto rank = static_cast<size_t>(other - all.begin());
  const std::string message = difference(rank, text_of(rank), text_of(0));
  try {  // a rank that fails ends the group: not before all ranks have the texts
    meet("settings", transport, context);
  } catch (const gradwire::TransportError&) {
    // Another rank was faster to leave; the difference is what to report either way.
  }
  throw gradwire::InvalidArgument(message);
}

void check_equal_on_all_ranks(uint64_t hash, gradwire::Transport& transport,
                              gradwire::Context& context) {
  const auto ranks = static_cast<size_t>(transport.world_size());
  std::vector<uint64_t> all(ranks);
  const auto gathered =
      gather_bytes(std::as_bytes(std::span(&hash, 1)), sizeof(hash),
                   {.fingerprint = sizeof(hash), .what = "parameter hash"}, transport, context);
  std::memcpy(all.data(), gathered.data(), gathered.size());
  std::string different;
  for (size_t r = 1; r < ranks; ++r) {
    if (all[r] != all[0]) {
      different += concat(different.empty() ? "" : ", ", r, " (", to_hex(all[r]), ")");
    }
  }
  if (!different.empty()) {
    throw gradwire::Error(concat("parameters: the hash differs on ranks ", different,
                                 ", expected rank 0's ", to_hex(all[0])));
  }
}

std::string to_hex(uint64_t hash) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << hash;
  return out.str();
}

}  // namespace trainer
