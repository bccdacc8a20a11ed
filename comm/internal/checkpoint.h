#pragma once
// The bytes of a checkpoint, written and read in order. CHECKPOINT_FORMAT.md has the grammar.

#include <cstdint>
#include <istream>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "gradwire/comm/plan.h"

namespace gradwire {

struct CheckpointHeader {
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t committed = 0;
  uint64_t skipped = 0;
  uint64_t model = 0;
  uint64_t plan = 0;
  uint32_t parameters = 0;
  uint32_t buckets = 0;
};

/// FNV-1a over what residuals depend on: dtype, names and shapes, not buckets and specs.
uint64_t model_fingerprint(const Plan& plan);

/// @throws InvalidArgument when the stream does not take the bytes.
class CheckpointWriter {
 public:
  CheckpointWriter(std::ostream& out, const CheckpointHeader& header);
  /// `estimate`: of a group with ef21, else empty; `velocity` as well, of one that keeps it.
  struct Parameter {
    size_t numel;
    std::span<const float> kept, estimate, velocity;
  };
  void parameter(const Parameter& kept);
  void groups(size_t count);
  void words(std::span<const uint64_t> words);
  void finish();

 private:
  void put(const void* data, size_t bytes);
  template <class T>
  void put(const T& value) {
    put(&value, sizeof value);
  }

  std::ostream& out_;
  uint64_t hash_;
};

/// Every call throws InvalidArgument naming the rank and what is wrong with its checkpoint.
class CheckpointReader {
 public:
  /// Reads and checks the header. `rank` is whose checkpoint the stream should be.
  CheckpointReader(std::unique_ptr<std::istream> in, int rank);
  const CheckpointHeader& header() const { return header_; }

  /// Of a parameter that must have `numel` elements, each of as many or of none: what waits, the
  /// estimate of ef21, the velocity. Valid until the next call.
  struct Parameter {
    std::span<const float> kept, estimate, velocity;
  };
  Parameter parameter(size_t numel);
  size_t groups();
  std::vector<uint64_t> words();
  /// The checksum must fit, and nothing may follow.
  void finish();

 private:
  void get(void* data, size_t bytes);
  template <class T>
  T get() {
    T value;
    get(&value, sizeof value);
    return value;
  }
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    check(condition, "checkpoint of rank ", rank_, ": ", parts...);
  }

  std::unique_ptr<std::istream> in_;
  int rank_;
  uint64_t hash_;
  CheckpointHeader header_;
  std::vector<float> kept_, velocity_;
};

}  // namespace gradwire
