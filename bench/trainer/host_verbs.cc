#include "bench/trainer/host_verbs.h"

#include <algorithm>

namespace trainer {
namespace {

bool on_gpu(const gradwire::Transport& transport) {
  return transport.traits().device.type == gradwire::DeviceType::kCuda;
}

// A GPU's stream passes calls that failed without a word.
void finish(const gradwire::Transport& transport, gradwire::Context& context) {
  context.stream.wait();
  transport.throw_if_failed();
}

// Room in the transport's memory for bytes of the host's.
class Staged {
 public:
  Staged(size_t bytes, gradwire::Context& context)
      : stream_(context.stream), there_(bytes, context.stream.device()) {}

  std::span<std::byte> bytes() const { return there_.bytes(); }
  void write(std::span<const std::byte> from) {
    gradwire::copy_bytes(bytes().first(from.size()), there_.device(), from, {}, stream_);
  }
  void read(std::span<std::byte> to) {
    gradwire::copy_bytes(to, {}, bytes().first(to.size()), there_.device(), stream_);
    stream_.wait();
  }

 private:
  gradwire::Stream& stream_;
  gradwire::Buffer there_;
};

}  // namespace

std::vector<std::byte> gather_bytes(std::span<const std::byte> mine, size_t stride,
                                    gradwire::CallTag tag, gradwire::Transport& transport,
                                    gradwire::Context& context) {
  const auto ranks = static_cast<size_t>(transport.world_size());
  std::vector<std::byte> all(ranks * stride);
  std::vector<size_t> lengths(ranks);
  if (!on_gpu(transport)) {
    const size_t length = mine.size();
    transport.all_gather(length, mine, {.bytes = all, .stride = stride, .lengths = lengths}, tag,
                         context);
    finish(transport, context);
    return all;
  }
  Staged own(stride, context), gathered(ranks * stride, context);  // zero: whole strides travel
  own.write(mine);
  transport.all_gather(stride, own.bytes(),
                       {.bytes = gathered.bytes(), .stride = stride, .lengths = lengths}, tag,
                       context);
  finish(transport, context);
  gathered.read(all);
  return all;
}

void sum_floats(std::span<float> values, gradwire::CallTag tag, gradwire::Transport& transport,
                gradwire::Context& context) {
  if (!on_gpu(transport)) {
    transport.all_reduce_sum(values, tag, context);
    finish(transport, context);
    return;
  }
  Staged there(values.size_bytes(), context);
  there.write(std::as_bytes(values));
  const std::span<std::byte> bytes = there.bytes();
  transport.all_reduce_sum({reinterpret_cast<float*>(bytes.data()), values.size()}, tag, context);
  finish(transport, context);
  there.read(std::as_writable_bytes(values));
}

void meet(std::string_view what, gradwire::Transport& transport, gradwire::Context& context) {
  transport.barrier({.what = what}, context);
  finish(transport, context);
}

}  // namespace trainer
