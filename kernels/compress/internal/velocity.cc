#include "gradwire/kernels/compress/internal/velocity.h"

#include <algorithm>
#include <utility>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/payload_header.h"

namespace gradwire {

void Velocity::make_room() {
  if (committed_.size_bytes() == 0) {
    committed_ = Buffer(numel_ * sizeof(float));
    next_ = Buffer(numel_ * sizeof(float));
  }
}

void Velocity::advance(ConstGradient g, VelocityRates rates, ThreadPool& pool) {
  make_room();
  pending_ = true;
  cpu::for_each_chunk(pool, (numel_ + kChunk - 1) / kChunk, [&](size_t chunk) {
    const size_t begin = chunk * kChunk, numel = std::min(kChunk, numel_ - begin);
    alignas(64) float values[kChunk];
    const std::span<float> x(values, numel);
    const std::span<float> next = next_.as<float>().subspan(begin, numel);
    cpu::widen(g.subview(begin, numel), x);
    cpu::multiply(x, rates.taken, x);
    cpu::multiply(committed_.as<float>().subspan(begin, numel), rates.kept, next);
    cpu::add(next, x, next);
  });
}

void Velocity::commit() {
  if (std::exchange(pending_, false)) {
    std::swap(committed_, next_);
  }
}

void Velocity::clear() {
  std::ranges::fill(committed_.as<float>(), 0.0f);
  pending_ = false;
}

std::span<float> Velocity::committed() {
  make_room();
  return committed_.as<float>();
}

}  // namespace gradwire
