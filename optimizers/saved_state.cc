#include "gradwire/optimizers/saved_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/optimizers/state_code.h"
#include "gradwire/optimizers/step.h"
#include "gradwire/optimizers/step_rule.h"

namespace gradwire {
namespace {

constexpr std::string_view kScale = ".scale";
constexpr uint16_t kToNearest = 0x7FFF;  // as a draw: half of the way to the next code, and beyond

std::span<const uint8_t> as_codes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of(const ConstTensorView& view) {
  return {static_cast<const std::byte*>(view.data), view.size_bytes()};
}

/// Visited twice: finds and checks what each piece becomes, then writes it. Places of the first
/// visit may be gone in the second, whose order is the same.
class Loader final : public StateVisitor {
 public:
  explicit Loader(SavedState& saved) : saved_(saved) {}

  void write_from_now_on() { writing_ = true; }

  void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
    const std::span<std::byte> to{static_cast<std::byte*>(value.data), value.size_bytes()};
    if (writing_) {
      write(to, value.device);
    } else if (name.ends_with(kScale) && made_scales_ != nullptr) {
      sources_.push_back(std::as_bytes(std::span(*std::exchange(made_scales_, nullptr))));
    } else if (const auto codes = saved_.bytes(parameter, name)) {
      check_size(parameter, name, codes->size(), value.numel);
      std::vector<float>& floats = made_floats_.emplace_back(value.numel);
      state_from_codes(*codes, scales_of(parameter, name, *codes), state_has_sign(name), floats);
      sources_.push_back(std::as_bytes(std::span(floats)));
    } else {
      sources_.push_back(bytes_of(found(parameter, name, value.numel, value.dtype)));
    }
  }

  void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> value,
             Device device) override {
    if (writing_) {
      write(value, device);
    } else if (const auto codes = saved_.bytes(parameter, name)) {
      check_size(parameter, name, codes->size(), value.size());
      scales_of(parameter, name, *codes);
      sources_.push_back(*codes);
    } else {
      const ConstTensorView from = found(parameter, name, value.size(), DType::kFloat32);
      std::vector<std::byte>& made = made_codes_.emplace_back(value.size());
      made_scales_ = &made_floats_.emplace_back(code_blocks(value.size()));
      state_to_codes(saved_.name_of(parameter, name), from.as<float>(), state_has_sign(name), made,
                     *made_scales_);
      sources_.push_back(made);
    }
  }

  void scalar(std::string_view parameter, std::string_view name, uint64_t& value) override {
    if (writing_) {
      value = scalars_.front();
      scalars_.pop_front();
      return;
    }
    const std::optional<uint64_t> from = saved_.scalar(parameter, name);
    check(from.has_value(), saved_.name_of(parameter, name), ": is missing, must be there");
    check(*from <= kMostSteps, saved_.name_of(parameter, name), ": is ", *from,
          ", must be at most 2^53");
    scalars_.push_back(*from);
  }

 private:
  void check_size(std::string_view parameter, std::string_view name, size_t size,
                  size_t wanted) const {
    check(size == wanted, saved_.name_of(parameter, name), ": has ", size, " elements, must have ",
          wanted);
  }

  ConstTensorView found(std::string_view parameter, std::string_view name, size_t numel,
                        DType dtype) const {
    const std::optional<ConstTensorView> from = saved_.tensor(parameter, name);
    check(from.has_value(), saved_.name_of(parameter, name), ": is missing, must be there");
    check_size(parameter, name, from->numel, numel);
    check(from->dtype == dtype, saved_.name_of(parameter, name), ": dtype is ",
          to_string(from->dtype), ", must be ", to_string(dtype));
    return *from;
  }

  std::span<const float> scales_of(std::string_view parameter, std::string_view name,
                                   std::span<const std::byte> codes) const {
    const ConstTensorView scales =
        found(parameter, concat(name, kScale), code_blocks(codes.size()), DType::kFloat32);
    check_codes(saved_.name_of(parameter, name), codes, scales.as<float>());
    return scales.as<float>();
  }

  void write(std::span<std::byte> to, Device device) {
    const std::span<const std::byte> from = sources_.front();
    sources_.pop_front();
    if (device.type == DeviceType::kCpu) {
      std::ranges::copy(from, to.begin());
      return;
    }
    if (stream_ == nullptr) {
      stream_ = cuda::make_stream(device.index);
    }
    copy_bytes(to, device, from, {}, *stream_);
    stream_->wait();
  }

  SavedState& saved_;
  bool writing_ = false;
  std::deque<std::span<const std::byte>> sources_;
  std::deque<uint64_t> scalars_;
  std::deque<std::vector<float>> made_floats_;  // deques: elements stay where they are
  std::deque<std::vector<std::byte>> made_codes_;
  std::vector<float>* made_scales_ = nullptr;  // of the codes before
  std::unique_ptr<Stream> stream_;             // of state on a GPU
};

}  // namespace

std::string SavedState::name_of(std::string_view parameter, std::string_view name) const {
  return concat("state['", parameter, "']['", name, "']");
}

void load_state(Optimizer& optimizer, SavedState& saved) {
  Loader loader(saved);
  optimizer.visit_state(loader);
  loader.write_from_now_on();
  optimizer.visit_state(loader);
  optimizer.state_loaded();
}

void check_codes(std::string_view what, std::span<const std::byte> codes,
                 std::span<const float> scales) {
  check(scales.size() == code_blocks(codes.size()), what, ": has ", scales.size(),
        " scales, must have ", code_blocks(codes.size()), ", one for every ", kCodeBlock, " codes");
  for (size_t b = 0; b < scales.size(); ++b) {
    const auto bits = std::bit_cast<uint32_t>(scales[b]);
    const uint32_t exponent = bits >> 23;
    check(bits == 0 || (bits << 9 == 0 && exponent >= code::kLeastExponent &&
                        exponent <= code::kMostExponent),
          what, ": scale ", b, " is ", scales[b],
          ", must be 0 or a power of two from 2^-87 to 2^127");
    const size_t begin = b * kCodeBlock, count = std::min(kCodeBlock, codes.size() - begin);
    const auto block = codes.subspan(begin, count);
    const auto bad =
        bits != 0 ? block.end()
                  : std::ranges::find_if(block, [](std::byte c) { return c != std::byte{0}; });
    check(bad == block.end(), what, ": code ", begin + static_cast<size_t>(bad - block.begin()),
          " is not 0, must be: the scale of its block is");
  }
}

void state_from_codes(std::span<const std::byte> codes, std::span<const float> scales,
                      bool has_sign, std::span<float> out) {
  cpu::decode_state(as_codes(codes), scales, has_sign, out);
}

void state_to_codes(std::string_view what, std::span<const float> x, bool has_sign,
                    std::span<std::byte> codes, std::span<float> scales) {
  const auto bad = std::ranges::find_if(
      x, [&](float value) { return !std::isfinite(value) || (!has_sign && value < 0.0f); });
  check(bad == x.end(), what, ": element ", bad - x.begin(), " is ", bad == x.end() ? 0.0f : *bad,
        ", must be finite ", has_sign ? "" : "and >= 0 ", "to become 8 bits");
  std::array<uint16_t, kCodeBlock> draws;
  draws.fill(kToNearest);
  for (size_t begin = 0; begin < x.size(); begin += kCodeBlock) {
    const size_t count = std::min(kCodeBlock, x.size() - begin);
    const auto to = codes.subspan(begin, count);
    cpu::encode_state(x.subspan(begin, count), std::span(draws).first(count), has_sign,
                      {reinterpret_cast<uint8_t*>(to.data()), count},
                      scales.subspan(begin / kCodeBlock, 1));
  }
}

}  // namespace gradwire
