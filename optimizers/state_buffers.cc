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
    memory_.push_back({.floats = Buffer(numel.floats * sizeof(float), device_),
                       .codes = Buffer(numel.codes, device_),
                       .scales = Buffer(numel.scales * sizeof(float), device_)});
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
  const size_t numel = item.has_codes ? 0 : item.value.numel;
  return memory_[place].floats.as<float>().subspan(item.has_codes ? 0 : item.state_offset, numel);
}

std::span<uint8_t> StateBuffers::codes(const ParameterSet::Item& item, size_t place) const {
  const size_t numel = item.has_codes ? item.value.numel : 0;
  return memory_[place].codes.as<uint8_t>().subspan(item.has_codes ? item.state_offset : 0, numel);
}

std::span<float> StateBuffers::scales(const ParameterSet::Item& item, size_t place) const {
  const size_t numel = item.has_codes ? code_blocks(item.value.numel) : 0;
  return memory_[place].scales.as<float>().subspan(item.has_codes ? item.scale_offset : 0, numel);
}

void StateBuffers::visit(const ParameterSet::Item& item, StateVisitor& visitor) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (!item.has_codes) {
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
  if (!item.has_codes) {
    return floats(item, place).subspan(piece.begin, count);
  }
  const std::span<float> out = scratch.first(count);
  cpu::decode_state(codes(item, place).subspan(piece.begin, count),
                    scales(item, place).subspan(piece.begin / kCodeBlock, code_blocks(count)),
                    has_sign(place), out);
  return out;
}

void StateBuffers::store(const ParameterSet::Item& item, const ParameterSet::Piece& piece,
                         std::initializer_list<std::span<const float>> changed) const {
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
  size_t place = 0;
  for (const std::span<const float> state : changed) {
    cpu::encode_state(state, draws, has_sign(place), codes(item, place).subspan(piece.begin, count),
                      scales(item, place).subspan(piece.begin / kCodeBlock, code_blocks(count)));
    ++place;
  }
}

}  // namespace gradwire
