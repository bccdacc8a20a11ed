#include "gradwire/comm/internal/checkpoint.h"

#include <bit>
#include <cstring>

#include "gradwire/comm/fingerprint.h"

namespace gradwire {
namespace {

static_assert(std::endian::native == std::endian::little);  // memory is the format

constexpr char kMagic[4] = {'G', 'W', 'C', 'K'};
constexpr uint32_t kVersion = 2;
constexpr uint32_t kMostGroups = 65536;
constexpr uint64_t kMostWords = uint64_t{1} << 30;  // a float of each of 2^31 elements
constexpr uint64_t kWordsAtATime = uint64_t{1} << 16;

uint64_t hash_of(const void* data, size_t bytes, uint64_t hash) {
  return fnv1a(std::string_view(static_cast<const char*>(data), bytes), hash);
}

}  // namespace

uint64_t model_fingerprint(const Plan& plan) {
  uint64_t hash = fnv1a(to_string(plan.dtype));
  for (const ParamInfo& parameter : plan.parameters) {
    hash = fnv1a(concat("\n", parameter.name), hash);
    for (const size_t extent : parameter.shape) {
      hash = fnv1a(concat(" ", extent), hash);
    }
  }
  return hash;
}

CheckpointWriter::CheckpointWriter(std::ostream& out, const CheckpointHeader& header)
    : out_(out), hash_(kFnvBasis) {
  put(kMagic);
  put(kVersion);
  put(header.rank);
  put(header.world_size);
  put(header.committed);
  put(header.skipped);
  put(header.model);
  put(header.plan);
  put(header.parameters);
  put(header.buckets);
  put(uint64_t{hash_});
}

void CheckpointWriter::parameter(const Parameter& kept) {
  put(uint64_t{kept.numel});
  put(uint64_t{kept.kept.size() + kept.estimate.size()});
  put(kept.kept.data(), kept.kept.size_bytes());
  put(kept.estimate.data(), kept.estimate.size_bytes());
  put(uint64_t{kept.velocity.size()});
  put(kept.velocity.data(), kept.velocity.size_bytes());
}

void CheckpointWriter::groups(size_t count) { put(static_cast<uint32_t>(count)); }

void CheckpointWriter::words(std::span<const uint64_t> words) {
  put(uint64_t{words.size()});
  put(words.data(), words.size_bytes());
}

void CheckpointWriter::finish() {
  put(uint64_t{hash_});
  out_.flush();
  check(out_.good(), "checkpoint: the stream failed at its end, expected it to take all bytes");
}

void CheckpointWriter::put(const void* data, size_t bytes) {
  out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  check(out_.good(), "checkpoint: the stream refused ", bytes, " bytes, expected it to take them");
  hash_ = hash_of(data, bytes, hash_);
}

CheckpointReader::CheckpointReader(std::unique_ptr<std::istream> in, int rank)
    : in_(std::move(in)), rank_(rank), hash_(kFnvBasis) {
  char magic[sizeof kMagic];
  get(magic, sizeof magic);
  require(std::memcmp(magic, kMagic, sizeof magic) == 0, "begins with other bytes than 'GWCK'");
  const auto version = get<uint32_t>();
  require(version == kVersion, "version is ", version, ", expected ", kVersion);
  header_.rank = get<uint32_t>();
  header_.world_size = get<uint32_t>();
  header_.committed = get<uint64_t>();
  header_.skipped = get<uint64_t>();
  header_.model = get<uint64_t>();
  header_.plan = get<uint64_t>();
  header_.parameters = get<uint32_t>();
  header_.buckets = get<uint32_t>();
  const uint64_t expected = hash_;
  require(get<uint64_t>() == expected, "the header does not fit its checksum");
  require(header_.rank == static_cast<uint32_t>(rank), "was saved by rank ", header_.rank, " of ",
          header_.world_size);
  require(header_.rank < header_.world_size, "world size is ", header_.world_size,
          ", must be above the rank");
}

CheckpointReader::Parameter CheckpointReader::parameter(size_t numel) {
  const auto stated = get<uint64_t>(), kept = get<uint64_t>();
  require(stated == numel && (kept == numel || kept == 0 || kept == 2 * uint64_t{numel}),
          "a parameter has ", kept, " of ", stated, " values, expected all, twice all or none of ",
          numel);
  kept_.resize(kept);
  get(kept_.data(), kept * sizeof(float));
  const auto velocity = get<uint64_t>();
  require(velocity == numel || velocity == 0, "a velocity has ", velocity,
          " values, expected all or none of ", numel);
  velocity_.resize(velocity);
  get(velocity_.data(), velocity * sizeof(float));
  const std::span<const float> all(kept_);
  return {all.first(std::min<size_t>(kept, numel)), all.subspan(std::min<size_t>(kept, numel)),
          velocity_};
}

size_t CheckpointReader::groups() {
  const auto count = get<uint32_t>();
  require(count <= kMostGroups, "a bucket has ", count, " groups, at most ", kMostGroups,
          " can be");
  return count;
}

std::vector<uint64_t> CheckpointReader::words() {
  const auto count = get<uint64_t>();
  require(count <= kMostWords, "a state has ", count, " words, at most ", kMostWords, " can be");
  std::vector<uint64_t> words;
  while (words.size() < count) {  // memory for what is there, whatever the count says
    const size_t begin = words.size();
    words.resize(std::min(count, begin + kWordsAtATime));
    get(words.data() + begin, (words.size() - begin) * sizeof(uint64_t));
  }
  return words;
}

void CheckpointReader::finish() {
  const uint64_t expected = hash_;
  require(get<uint64_t>() == expected, "the bytes do not fit their checksum");
  require(in_->peek() == std::istream::traits_type::eof(), "bytes follow its end");
}

void CheckpointReader::get(void* data, size_t bytes) {
  in_->read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
  require(static_cast<size_t>(in_->gcount()) == bytes, "ends where ", bytes,
          " more bytes were expected");
  hash_ = hash_of(data, bytes, hash_);
}

}  // namespace gradwire
