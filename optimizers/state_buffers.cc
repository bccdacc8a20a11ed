#include "gradwire/optimizers/state_buffers.h"

#include <algorithm>
#include <array>

#include "gradwire/kernels/ops/random.h"
#include "gradwire/optimizers/state_code.h"
#include "gradwire/optimizers/step.h"

namespace gradwire {

StateBuffers::StateBuffers(const ParameterSet& set, std::vector<std::string_view> names)
    : names_(std::move(names)), device_(set.device()) {
  const ParameterSet::StateNumel numel = set.state_numel();
  for (size_t i = 0; i < names_.size(); ++i) {
    const bool codes = has_codes(i);
    memory_.push_back({.floats = Buffer((codes ? numel.floats : numel.whole) * 4, device_),
                       .codes = Buffer(codes ? numel.codes : 0, device_),
                       .scales = Buffer((codes ? numel.scales : 0) * 4, device_)});
  }
}

size_t StateBuffers::size_bytes() const {
  size_t bytes = 0;
  for (const Memory& memory : memory_) {
    bytes += memory.floats.size_bytes() + memory.codes.size_bytes() + memory.scales.size_bytes();
  }
  return bytes;
}

std::span<float> StateBuffers::floats(const ParameterSet::Item& item, size_t place) const {
  if (coded(item, place)) {
    return {};
  }
  return memory_[place].floats.as<float>().subspan(
      has_codes(place) ? item.state_offset : item.whole_offset, item.value.numel);
}

std::span<uint8_t> StateBuffers::codes(const ParameterSet::Item& item, size_t place) const {
  return coded(item, place)
             ? memory_[place].codes.as<uint8_t>().subspan(item.state_offset, item.value.numel)
             : std::span<uint8_t>();
}

std::span<float> StateBuffers::scales(const ParameterSet::Item& item, size_t place) const {
  return coded(item, place) ? memory_[place].scales.as<float>().subspan(
                                  item.scale_offset, code_blocks(item.value.numel))
                            : std::span<float>();
}

void StateBuffers::visit(const ParameterSet::Item& item, StateVisitor& visitor) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (!coded(item, i)) {
      visitor.tensor(item.name, names_[i],
                     {floats(item, i).data(), item.value.numel, DType::kFloat32, device_});
      continue;
    }
    const std::span<float> scale = scales(item, i);
    visitor.bytes(item.name, names_[i], std::as_writable_bytes(codes(item, i)), device_);
    visitor.tensor(item.name, concat(names_[i], ".scale"),
                   {scale.data(), scale.size(), DType::kFloat32, device_});
  }
}

std::span<float> StateBuffers::load(const ParameterSet::Item& item,
                                    const ParameterSet::Piece& piece, size_t place,
                                    std::span<float, kStepPiece> scratch) const {
  const size_t count = piece.value.size();
  if (!coded(item, place)) {
    return floats(item, place).subspan(piece.begin, count);
  }
  const std::span<float> out = scratch.first(count);
  cpu::decode_state(codes(item, place).subspan(piece.begin, count),
                    scales(item, place).subspan(piece.begin / kCodeBlock, code_blocks(count)),
                    has_sign(place), out);
  return out;
}

void StateBuffers::store(const ParameterSet::Item& item, const ParameterSet::Piece& piece,
                         std::initializer_list<std::span<const float>> changed,
                         size_t first) const {
  if (!item.has_codes) {
    return;
  }
  const size_t count = piece.value.size();
  alignas(64) std::array<uint16_t, kStepPiece> drawn;
  const std::span<uint16_t> draws = std::span(drawn).first(count);
  cpu::random_halves({.seed = item.draw_key,
                      .step = static_cast<uint32_t>(item.steps),
                      .parameter = static_cast<uint32_t>(item.steps >> 32)},
                     piece.begin, draws);
  size_t place = first;
  for (const std::span<const float> state : changed) {
    cpu::encode_state(state, draws, has_sign(place), codes(item, place).subspan(piece.begin, count),
                      scales(item, place).subspan(piece.begin / kCodeBlock, code_blocks(count)));
    ++place;
  }
}

}  // namespace gradwire
