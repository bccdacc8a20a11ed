#include "gradwire/kernels/compress/compressor.h"

#include "gradwire/kernels/compress/internal/arguments.h"
#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/velocity.h"

namespace gradwire {
namespace {

bool on_gpu(const Compressor& compressor) {
  return compressor.shape().device.type == DeviceType::kCuda;
}

/// Refuses a verb, unless `fits`.
void check_fits(bool fits, const Compressor& compressor, std::string_view verb,
                std::string_view expected) {
  check(fits, verb, ": the compressor is '", to_string(compressor.spec()), "', in ",
        on_gpu(compressor) ? "GPU" : "CPU", " memory, expected one ", expected);
}

void check_two_rounds(const Compressor& compressor, std::string_view verb) {
  check(compressor.rounds() == 2, verb, ": the compressor is '", to_string(compressor.spec()),
        "' with one round, expected one with two");
}

ChunkedFormat& on_cpu(const Compressor& compressor, Format& format, std::string_view verb) {
  check_fits(!on_gpu(compressor), compressor, verb, "in CPU memory");
  return static_cast<ChunkedFormat&>(format);
}

void check_pass(const Compressor& compressor, const Pass& pass, ConstPayload out,
                const Context& context) {
  check_context(compressor, context);
  check_gradient(compressor, pass.g);
  check_residuals(compressor, pass.e, pass.e_next);
  check_room(compressor, out, compressor.capacity_bytes());
}

void check_parts(const Compressor& compressor, std::span<const ConstPayload> parts, float scale,
                 const Context& context) {
  check_context(compressor, context);
  check_scale(compressor, scale);
  check_payloads(compressor, parts);
}

void check_part(const Compressor& compressor, const ConstPayload& part, const Context& context) {
  check_context(compressor, context);
  check_payloads(compressor, {&part, 1});
}

}  // namespace

Compressor::Compressor(std::unique_ptr<Format> format)
    : format_(std::move(format)),
      velocity_(keeps_velocity(spec()) ? std::make_unique<Velocity>(spec(), shape()) : nullptr) {}

Compressor::~Compressor() = default;

const CompressorSpec& Compressor::spec() const { return format_->spec(); }
const CompressorShape& Compressor::shape() const { return format_->shape(); }
bool Compressor::fixed_length() const { return format_->traits().fixed_length; }
int Compressor::rounds() const { return format_->traits().rounds(); }
size_t Compressor::first_bytes() const { return format_->traits().first_bytes; }
Combine Compressor::combine() const { return format_->traits().combine; }

size_t Compressor::kept_bytes() const {
  return format_->traits().learned_bytes + (velocity_ == nullptr ? 0 : velocity_->kept_bytes());
}

size_t Compressor::capacity_bytes() const { return format_->capacity_for({0, shape().numel}); }

size_t Compressor::slice_capacity_bytes(Region region) const {
  check_region(*this, region);
  return format_->capacity_for(region);
}

size_t Compressor::capacity_for_entries(Region region, size_t most_entries) const {
  check_region(*this, region);
  return format_->capacity_for_entries(region, most_entries);
}

void Compressor::compress(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                          Context& context) {
  const Pass pass{g, e, e_next, velocity_.get()};
  check_pass(*this, pass, out, context);
  format_->compress(pass, out, context);
}

void Compressor::compress_second(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                                 Context& context) {
  check_two_rounds(*this, "compress_second");
  const Pass pass{g, e, e_next, velocity_.get(), true};
  check_pass(*this, pass, out, context);
  format_->compress(pass, out, context);
}

void Compressor::compress_accumulated(Residual x, Payload out, Context& context) {
  check_context(*this, context);
  check_accumulated(*this, x);
  check_room(*this, out, capacity_bytes());
  const ConstGradient g{x.data(), x.size(), DType::kFloat32, shape().device};
  format_->compress({.g = g, .e = {}, .e_next = x}, out, context);
}

void Compressor::restore(ConstPayload payload, Residual x, Context& context) {
  check_accumulated(*this, x);
  check_part(*this, payload, context);
  format_->restore(payload, x, context);
}

void Compressor::take_first(std::span<const ConstPayload> parts, float scale, Context& context) {
  check_two_rounds(*this, "take_first");
  check_parts(*this, parts, scale, context);
  format_->take_first(parts, scale, context);
}

void Compressor::check_first(ConstPayload part, Context& context) {
  check_two_rounds(*this, "check_first");
  ChunkedFormat& format = on_cpu(*this, *format_, "check_first");
  check_part(*this, part, context);
  format.check_first(part, context);
}

void Compressor::decompress(std::span<const ConstPayload> parts, float scale, Gradient sum,
                            Context& context, bool* finite) {
  check_gradient(*this, sum);
  check_parts(*this, parts, scale, context);
  format_->decompress(parts, {scale, sum, finite}, context);
}

void Compressor::check_sum(std::span<const ConstPayload> parts, float scale, bool& finite,
                           Context& context) {
  check_fits(format_->traits().by_chunks, *this, "check_sum", "whose chunks decode alone");
  ChunkedFormat& format = on_cpu(*this, *format_, "check_sum");
  check_parts(*this, parts, scale, context);
  format.check_sum(parts, scale, finite, context);
}

void Compressor::look_for_large_rest(ConstPayload payload, bool& large, Context& context) {
  ChunkedFormat& format = on_cpu(*this, *format_, "look_for_large_rest");
  check_part(*this, payload, context);
  format.look_for_large_rest(payload, large, context);
}

void Compressor::count_entries(ConstPayload payload, std::span<float> counts, Context& context) {
  const CompressorRow& row = find_compressor(spec().name);
  check_fits(row.selector() && !row.shared_choice(), *this, "count_entries", "that sends entries");
  ChunkedFormat& format = on_cpu(*this, *format_, "count_entries");
  const size_t chunks = chunks_of(shape().numel);
  check(counts.size() == chunks, spec().name, ": there are ", counts.size(), " counts, must be ",
        chunks, ", one per chunk");
  check_part(*this, payload, context);
  format.count_entries(payload, counts, context);
}

void Compressor::slice(ConstPayload payload, Region region, Payload out, Context& context) {
  check_part(*this, payload, context);
  check_room(*this, out, slice_capacity_bytes(region));
  format_->slice({payload, region}, {}, out, context);
}

void Compressor::slice_at_most(const SliceInput& input, Residual e_next, Payload out,
                               Context& context) {
  check_fits(find_compressor(spec().name).among_all(), *this, "slice_at_most",
             "that chooses among all elements");
  ChunkedFormat& format = on_cpu(*this, *format_, "slice_at_most");
  check(input.most_entries > 0, spec().name, ": most_entries is 0, must be positive");
  check_room(*this, out, capacity_for_entries(input.region, input.most_entries));
  check_residual(*this, "residual e_next", e_next);
  check(!e_next.empty(), spec().name,
        ": residual e_next is empty, must take the entries that find no room");
  check_part(*this, input.payload, context);
  format.slice(input, e_next, out, context);
}

void Compressor::merge(const MergeInput& input, Residual e_next, Payload out, Context& context) {
  if (input.most_entries > 0) {
    check(!on_gpu(*this), spec().name, ": most_entries is ", input.most_entries,
          ", must be 0 on a GPU");
    check(find_compressor(spec().name).among_all(), spec().name, ": most_entries is ",
          input.most_entries, ", must be 0: it does not choose among all elements");
  }
  check_parts(*this, input.slices, input.scale, context);
  check_room(*this, out,
             input.most_entries == 0 ? slice_capacity_bytes(input.region)
                                     : capacity_for_entries(input.region, input.most_entries));
  check_residual(*this, "residual e_next", e_next);
  if (on_gpu(*this) && !input.e.empty()) {
    check_residuals(*this, input.e, e_next);
  }
  format_->merge(input, e_next, out, context);
}

uint32_t Compressor::step() const { return format_->step(); }

void Compressor::commit() {
  if (on_gpu(*this)) {
    throw DeviceError(concat(spec().name,
                             ": commit() is of CPU compressors, on a GPU "
                             "DeviceState::commit() commits on a stream"));
  }
  format_->commit();
  if (velocity_ != nullptr) {
    velocity_->commit();
  }
}

void Compressor::set_step(uint32_t step) {
  if (on_gpu(*this)) {
    throw DeviceError(concat(spec().name,
                             ": set_step() is of CPU compressors, on a GPU "
                             "DeviceState::set_step() sets it on a stream"));
  }
  format_->set_step(step);
  if (velocity_ != nullptr) {
    velocity_->clear();
  }
}

std::vector<uint64_t> Compressor::state() const { return format_->state(); }
void Compressor::set_state(std::span<const uint64_t> state) { format_->set_state(state); }
void Compressor::learn_from(std::span<const uint64_t> state) { format_->learn_from(state); }

std::span<float> Compressor::velocity() {
  return velocity_ == nullptr ? std::span<float>{} : velocity_->committed();
}

void Compressor::read_velocity(Residual to, Context& context) {
  check_context(*this, context);
  check_velocity(*this, "velocity to", to);
  velocity_->read(to, context);
}

void Compressor::write_velocity(ConstResidual from, Context& context) {
  check_context(*this, context);
  check_velocity(*this, "velocity from", from);
  velocity_->write(from, context);
}

}  // namespace gradwire
