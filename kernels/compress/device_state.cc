#include "gradwire/kernels/compress/device_state.h"

#include <array>
#include <cstddef>

#include "gradwire/kernels/ops/parts_cuda.h"

namespace gradwire {
namespace {

constexpr std::array<std::string_view, 14> kReasons = {
    "a payload did not fit into its buffer",
    "it has fewer bytes than a header",
    "its magic is wrong",
    "its version is not 1",
    "its stated length is not within 32 and the bytes given",
    "its format is another compressor's",
    "its value codec is another compressor's",
    "it has unknown flags",
    "its spec fingerprint is another spec's",
    "its region does not fit the group and the call",
    "its body's length is not what its elements and counts give",
    "a scale is not finite or negative",
    "the indices of a chunk do not increase, or leave it",
    "its variant is none of its spec's, or not that of part 0"};
static_assert(kReasons.size() == static_cast<size_t>(cuda::FaultReason::kVariant) + 1);

}  // namespace

DeviceState::DeviceState(Device device) : words_(sizeof(cuda::StepWords), device) {}

cuda::StepWords* DeviceState::words() const {
  return reinterpret_cast<cuda::StepWords*>(words_.data());
}

void DeviceState::commit(OnNonFinite policy, Stream& stream) {
  cuda::commit_step(words(), policy == OnNonFinite::kSkip, stream);
}

void DeviceState::clear(Stream& stream) { cuda::clear_faults(words(), stream); }

void DeviceState::set_step(uint32_t step, Stream& stream) {
  cuda::set_step(words(), step, stream);
}

void DeviceState::set_words(const cuda::StepWords& words, Stream* stream) {
  if (stream == nullptr) {
    *this->words() = words;
    return;
  }
  copy_bytes(words_.bytes(), device(), std::as_bytes(std::span(&words, 1)), {}, *stream);
  stream->wait();
}

cuda::StepWords DeviceState::read(Stream& stream) const {
  cuda::StepWords words;
  copy_bytes(std::as_writable_bytes(std::span(&words, 1)), {}, words_.bytes(), device(), stream);
  stream.wait();
  return words;
}

size_t DeviceState::parity(Stream* stream) const {
  return device().type == DeviceType::kCpu ? words()->parity : read(*stream).parity;
}

void DeviceState::check(Stream& stream) const { check(read(stream)); }

void DeviceState::check(const cuda::StepWords& words) {
  const size_t reason = words.fault & 0xFF;
  gradwire::check((words.status & cuda::kStatusMalformed) == 0 || reason != 0, kReasons[0]);
  gradwire::check((words.status & cuda::kStatusMalformed) == 0, "payload part ", words.fault >> 8,
                  ": ", kReasons[reason < kReasons.size() ? reason : 0]);
  gradwire::check((words.status & cuda::kStatusNonFinite) == 0 || words.overflowed == 0,
                  "the sum of the ranks' finite gradients overflows float32 in step ", words.step,
                  ", must be finite");
  gradwire::check(
      (words.status & cuda::kStatusNonFinite) == 0,
      "a gradient plus residual of some rank, or the sum of all, holds NaN or infinity in "
      "step ",
      words.step, ", must be finite");
}

}  // namespace gradwire
