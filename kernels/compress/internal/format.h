#pragma once
// One payload format on one device: the bytes of a group's payloads, as they are written, read, cut and
// merged. Compressor has checked the arguments of every call (arguments.h); what the bytes of received
// payloads hold is checked here. Calls with a context enqueue. On the CPU formats derive from
// ChunkedFormat (chunked.h), on a GPU from CudaFormat (cuda_format.h).

#include "gradwire/kernels/compress/compressor_shape.h"
#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire {

class Velocity;

/// What one of the compress verbs encodes.
struct Pass {
  ConstGradient g;
  ConstResidual e;
  Residual e_next;  ///< alone, without e: what g views, accumulated gradient and residual
  Velocity* velocity = nullptr;  ///< takes the gradient's place first
  bool second = false;           ///< of compress_second()

  bool accumulated() const { return e.empty() && !e_next.empty(); }
};

/// What decompress() writes.
struct Sum {
  float scale = 1.0f;
  Gradient sum;
  bool* finite = nullptr;
};

struct FormatTraits {
  Combine combine = Combine::kGather;
  bool fixed_length = false;
  bool by_chunks = true;     ///< chunks decode one by one
  size_t first_bytes = 0;    ///< of a first payload; 0: there is one round
  size_t learned_bytes = 0;  ///< of memory kept between steps

  int rounds() const { return first_bytes > 0 ? 2 : 1; }
};

class Format {
 public:
  virtual ~Format() = default;

  const CompressorSpec& spec() const { return spec_; }
  const CompressorShape& shape() const { return shape_; }
  uint32_t step() const { return step_; }  ///< on the CPU

  virtual FormatTraits traits() const = 0;
  /// Upper bound of any payload of `region`, header included.
  virtual size_t capacity_for(Region region) const = 0;
  /// Of one with at most so many entries, where the format has entries and the device cuts by them.
  virtual size_t capacity_for_entries(Region region, size_t /*most_entries*/) const {
    return capacity_for(region);
  }

  virtual void compress(const Pass& pass, Payload out, Context& context) = 0;
  /// Of two rounds alone.
  virtual void take_first(std::span<const ConstPayload> parts, float scale, Context& context) = 0;
  virtual void decompress(std::span<const ConstPayload> parts, const Sum& what,
                          Context& context) = 0;
  virtual void restore(ConstPayload payload, Residual x, Context& context) = 0;
  /// Where most_entries is 0 all of the region's, and e_next is empty.
  virtual void slice(const SliceInput& input, Residual e_next, Payload out, Context& context) = 0;
  virtual void merge(const MergeInput& input, Residual e_next, Payload out, Context& context) = 0;

  // What a format learns from step to step. On the CPU the compressor's owner commits, on a GPU the
  // state's words.

  void commit() {
    keep_learned();
    ++step_;
  }
  void set_step(uint32_t step) {
    forget_learned();
    step_ = step;
  }
  virtual std::vector<uint64_t> state() const { return {}; }
  virtual void set_state(std::span<const uint64_t> state) {
    check(state.empty(), spec_.name, ": its state has ", state.size(), " words, expected none");
  }
  virtual void learn_from(std::span<const uint64_t> /*state*/) {}

 protected:
  Format(CompressorSpec spec, CompressorShape shape)
      : spec_(std::move(spec)), shape_(std::move(shape)) {}

  virtual void keep_learned() {}
  virtual void forget_learned() {}
  Region whole() const { return {0, shape_.numel}; }

 private:
  const CompressorSpec spec_;
  const CompressorShape shape_;
  uint32_t step_ = 0;
};

}  // namespace gradwire
