// The optimizers on a GPU. What is fixed, or changes by bind() and set_groups(), lies in tables in
// its memory; a step is a few launches that read them (step_cuda.h), and faults stay in words there
// until synchronize() fetches them.

#include <algorithm>

#include "gradwire/kernels/core/device_name.h"
#include "gradwire/optimizers/registry.h"
#include "gradwire/optimizers/staged_upload.h"
#include "gradwire/optimizers/state_buffers.h"
#include "gradwire/optimizers/step_cuda.h"

namespace gradwire {
namespace {

class CudaOptimizer final : public Optimizer {
 public:
  CudaOptimizer(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
                const std::vector<ParamGroup>& groups)
      : spec_(spec),
        rule_(step_rule(spec)),
        set_(spec, parameters, adjusted_groups(spec, state_names(spec, groups), groups)),
        state_(set_, state_names(spec, groups)),
        group_count_(groups.size()),
        stream_(cuda::make_stream(set_.device().index)),
        host_items_(set_.items().size()),
        host_counts_(set_.items().size()) {
    const size_t items = set_.items().size(), blocks = set_.blocks().size();
    const auto make = [&](size_t bytes) { return Buffer(bytes, set_.device()); };
    items_ = make(items * sizeof(cuda::StepItem));
    blocks_ = make(blocks * sizeof(cuda::StepBlock));
    steps_ = make(items * sizeof(cuda::ItemStep));
    counts_ = make(items * sizeof(uint64_t));
    sums_ = make((3 * items + 1 + 2 * blocks) * sizeof(double));
    words_ = make(sizeof(cuda::OptimizerWords));
    for (const Parameter& parameter : parameters) {
      check_outer(parameter.name, {parameter.value, parameter.gradient});
    }
    if (is_onebit()) {
      (void)onebit_rule(spec);  // throws for bounds that do not fit
      layers_ = make(items * sizeof(OneBitLayer));
      averages_ = make(items * sizeof(OneBitCounts));
      factors_ = make(items * sizeof(FrozenFactors) + items * sizeof(float));
      ratios_ = make(blocks * sizeof(uint32_t));
      const std::vector<OneBitLayer> at_first(items);
      upload(layers_, std::as_bytes(std::span(at_first)), *stream_);
      host_averages_.resize(items);
    }
    upload_blocks();
    upload_items();
    take_values(*stream_);
    stream_->wait();
  }

  const OptimizerSpec& spec() const override { return spec_; }

  Exchanged exchanges() const override { return exchanges_behind(*stream_); }
  Exchanged exchanges(Context& context) const override {
    check_stream(context);
    return exchanges_behind(context.stream);
  }

  using Optimizer::prepare;
  void prepare(const StepOptions& options, Context& context) override {
    check_call(options, context);
    if (rule_.outer) {
      check_scale_of_moves(spec_.name, options);
      set_.check_gradients_in_memory("prepare");
      cuda::write_moves(tables(), context.stream);
    } else if (is_onebit()) {
      cuda::prepare_onebit(tables(), {options, rule_, reads_}, onebit_tables(), context.stream);
    }
  }

  using Optimizer::apply;
  void apply(const StepOptions& options, Context& context) override {
    check_call(options, context);
    if (is_onebit()) {
      cuda::step_onebit(tables(), {options, rule_, reads_}, onebit_tables(), context.stream);
    } else {
      cuda::step(tables(), {options, rule_, reads_}, context.stream);
    }
  }

  void bind(std::span<const Binding> places) override {
    take_places(places);
    upload_items();
  }

  void bind_in_order(std::span<const Binding> places, Context& context) override {
    check_stream(context);
    take_places(places);
    upload_items_in_order(context.stream);
  }

  void set_groups(std::vector<ParamGroup> groups) override {
    take_groups(std::move(groups));
    upload_items();
  }

  void set_groups_in_order(std::vector<ParamGroup> groups, Context& context) override {
    check_stream(context);
    take_groups(std::move(groups));
    upload_items_in_order(context.stream);
  }

  void values_changed(Context& context) override {
    check_stream(context);
    take_values(context.stream);
  }

  void synchronize(Context& context) override {
    check_stream(context);
    cuda::OptimizerWords words = read_words(context.stream);
    if (words.fault == cuda::StepFault::kNone) {
      return;
    }
    const cuda::OptimizerWords found = words;
    words.fault = cuda::StepFault::kNone;
    write_words(words, context.stream);
    check(found.fault != cuda::StepFault::kLearningRate, spec_.name,
          ": learning_rate in GPU memory is ", found.fault_value, ", must be finite and >= 0");
    check(found.fault != cuda::StepFault::kLossScale, spec_.name, ": loss_scale in GPU memory is ",
          found.fault_value, ", must be finite and > 0");
    check(found.fault != cuda::StepFault::kUnprepared, spec_.name,
          ": apply() without prepare(), expected before the exchange of every step once "
          "exchanges() says momentum");
    check(found.fault != cuda::StepFault::kScaled, spec_.name,
          ": gradient_scale, over the loss scale, is ", found.fault_value, ", must be ",
          found.fault_wanted, ", as prepare() was given, which has read the gradients");
    check(found.fault != cuda::StepFault::kUnwritable, "prepare: the gradient of parameter '",
          name_of_fault(found),
          "' comes from payloads, expected memory to write what is to be exchanged to");
    check(found.fault != cuda::StepFault::kPayloads, spec_.name, ": the gradient of parameter '",
          name_of_fault(found), "' comes from payloads that failed a check or were never opened");
    check(found.fault != cuda::StepFault::kNotReading, spec_.name, ": the gradient of parameter '",
          name_of_fault(found),
          "' comes from payloads, expected memory as when the step was captured");
    if (found.fault_item == cuda::kElsewhere) {
      throw NonFiniteGradient(
          "gradients: another rank's slice has an element that is not finite, or that rank left "
          "the step out, expected finite values");
    }
    throw NonFiniteGradient(concat("gradient of parameter '", name_of_fault(found),
                                   "' holds NaN or infinity, expected finite values"));
  }

  uint64_t skipped_steps(Context& context) override {
    check_stream(context);
    return read_words(context.stream).skipped;
  }

  size_t state_bytes() const override { return state_.size_bytes() + set_.master_bytes(); }

  void visit_state(StateVisitor& visitor) override {
    const std::span<uint64_t> counts(host_counts_);
    const std::span<OneBitCounts> averages(host_averages_);
    copy_bytes(std::as_writable_bytes(counts), {}, counts_.bytes(), set_.device(), *stream_);
    copy_bytes(std::as_writable_bytes(averages), {}, averages_.bytes(), set_.device(), *stream_);
    stream_->wait();
    for (size_t i = 0; i < host_counts_.size(); ++i) {
      const ParameterSet::Item& item = set_.items()[i];
      visitor.scalar(item.name, "step", host_counts_[i]);
      state_.visit(item, visitor);
      set_.visit_master(item, visitor);
      if (is_onebit()) {
        visit_layer(i, visitor);
      }
    }
    upload(counts_, std::as_bytes(counts), *stream_);
    upload(averages_, std::as_bytes(averages), *stream_);
  }

  void state_loaded() override {
    cuda::OptimizerWords words = read_words(*stream_);
    words.prepared = 0;
    write_words(words, *stream_);
  }

 private:
  Exchanged exchanges_behind(Stream& stream) const {
    if (!is_onebit()) {
      return rule_.outer ? Exchanged::kMoves : Exchanged::kGradients;
    }
    std::vector<uint64_t> counts(set_.items().size());
    copy_bytes(std::as_writable_bytes(std::span(counts)), {}, counts_.bytes(), set_.device(),
               stream);
    stream.wait();
    bool any = false;
    for (size_t i = 0; i < counts.size(); ++i) {
      const bool present = set_.items()[i].present();
      if (present && counts[i] < spec_.freeze_step) {
        return Exchanged::kGradients;
      }
      any = any || present;
    }
    return any ? Exchanged::kMomentum : Exchanged::kGradients;
  }

  bool is_onebit() const { return spec_.name.starts_with("onebit-"); }

  void visit_layer(size_t index, StateVisitor& visitor) {
    const std::string& name = set_.items()[index].name;
    visitor.scalar(name, "variance_step", host_averages_[index].variance_steps);
    if (rule_.layerwise) {
      OneBitLayer& layer = layers_.as<OneBitLayer>()[index];  // in GPU memory
      const auto one = [&](float* x) { return TensorView{x, 1, DType::kFloat32, set_.device()}; };
      visitor.scalar(name, "coefficients", host_averages_[index].coefficients);
      visitor.tensor(name, "coefficient", one(&layer.coefficient));
      visitor.tensor(name, "factor", one(&layer.factor));
      visitor.tensor(name, "momentum_scale", one(&layer.momentum_scale));
    }
  }

  cuda::OneBitTables onebit_tables() const {
    auto* const factors = factors_.as<FrozenFactors>().data();
    const size_t items = set_.items().size();
    return {.rule = onebit_rule(spec_),
            .layers = layers_.as<OneBitLayer>().data(),
            .averages = averages_.as<OneBitCounts>().data(),
            .factors = factors,
            .next_factors = reinterpret_cast<float*>(factors + items),
            .ratios = ratios_.as<uint32_t>().data()};
  }

  void check_outer(std::string_view parameter, const Binding& place) const {
    if (rule_.outer) {
      check_floats(parameter, place);
    }
  }

  void take_values(Stream& stream) const {
    if (rule_.outer) {
      cuda::take_anchors(tables(), stream);
    } else {
      cuda::take_values(tables(), stream);
    }
  }

  void check_call(const StepOptions& options, const Context& context) const {
    check_options(spec_.name, options);
    check(options.add_up == nullptr, spec_.name,
          ": add_up is given, expected on_device.add_up: the parameters are in memory of a GPU");
    check(!is_onebit() || options.on_device.add_up == nullptr, spec_.name,
          ": add_up is given, expected whole parameters on every rank");
    check_stream(context);
  }

  void check_stream(const Context& context) const {
    check(context.stream.device() == set_.device(), spec_.name, ": the stream is of ",
          name_of(context.stream.device()), ", must be of ", name_of(set_.device()),
          ", where the parameters are");
  }

  const std::string& name_of_fault(const cuda::OptimizerWords& words) const {
    return set_.items()[words.fault_item].name;
  }

  void take_places(std::span<const Binding> places) {
    for (size_t i = 0; i < std::min(places.size(), set_.items().size()); ++i) {
      check_outer(set_.items()[i].name, places[i]);
    }
    set_.bind(places);
  }

  void take_groups(std::vector<ParamGroup> groups) {
    check(groups.size() == group_count_, spec_.name, ": there are ", groups.size(),
          " groups, expected ", group_count_, " as before");
    set_.set_groups(spec_, adjusted_groups(spec_, state_.names(), std::move(groups)));
  }

  /// Waits for it: the source may be gone afterwards.
  void upload(const Buffer& to, std::span<const std::byte> source, Stream& stream) const {
    copy_bytes(to.bytes(), set_.device(), source, {}, stream);
    stream.wait();
  }

  void upload_blocks() const {
    std::vector<cuda::StepBlock> blocks;
    for (const ParameterSet::Block& block : set_.blocks()) {
      blocks.push_back({static_cast<uint32_t>(block.item - set_.items().data()),
                        static_cast<uint32_t>(block.offset / kStepBlock)});
    }
    upload(blocks_, std::as_bytes(std::span(blocks)), *stream_);
  }

  void upload_items() {
    fill_items();
    upload(items_, std::as_bytes(std::span(host_items_)), *stream_);
  }

  void upload_items_in_order(Stream& stream) {
    if (cuda::is_capturing(stream)) {  // a replay would read what is staged by then
      upload_items();
      return;
    }
    fill_items();
    if (staged_ == nullptr) {
      staged_ = std::make_unique<StagedUpload>(items_.size_bytes(), set_.device());
    }
    staged_->copy(items_, std::as_bytes(std::span(host_items_)), stream);
  }

  void fill_items() {
    reads_ = false;
    for (size_t i = 0; i < host_items_.size(); ++i) {
      const ParameterSet::Item& from = set_.items()[i];
      cuda::StepItem& to = host_items_[i];
      static_cast<StepSettings&>(to) = from;
      to.value = static_cast<std::byte*>(from.value.data);
      to.gradient = static_cast<const std::byte*>(from.gradient.data);
      to.source = from.reader == nullptr ? nullptr : from.reader->on_device();
      to.source_begin = from.reader_begin;
      reads_ = reads_ || to.source != nullptr;
      to.master = from.master.data();
      to.remainder = from.remainder.data();
      to.draw_key = from.draw_key;
      for (size_t s = 0; s < state_.names().size(); ++s) {
        const bool coded = state_.coded(from, s);
        to.state[s] = coded ? nullptr : state_.floats(from, s).data();
        to.codes[s] = coded ? state_.codes(from, s).data() : nullptr;
        to.scales[s] = coded ? state_.scales(from, s).data() : nullptr;
      }
      to.numel = from.value.numel;
      to.first_block = static_cast<uint32_t>(from.first_block);
      to.block_count = static_cast<uint32_t>(from.block_count);
      to.value_type = from.value.dtype;
      to.gradient_type = from.gradient.dtype;
    }
  }

  cuda::OptimizerWords read_words(Stream& stream) const {
    cuda::OptimizerWords words;
    copy_bytes(std::as_writable_bytes(std::span(&words, 1)), {}, words_.bytes(), set_.device(),
               stream);
    stream.wait();
    return words;
  }

  void write_words(const cuda::OptimizerWords& words, Stream& stream) const {
    upload(words_, std::as_bytes(std::span(&words, 1)), stream);
  }

  cuda::StepTables tables() const {
    const size_t items = set_.items().size(), blocks = set_.blocks().size();
    const std::span<double> sums = sums_.as<double>();
    return {.items = items_.as<cuda::StepItem>().data(),
            .blocks = blocks_.as<cuda::StepBlock>().data(),
            .item_count = items,
            .block_count = blocks,
            .steps = steps_.as<cuda::ItemStep>().data(),
            .counts = counts_.as<uint64_t>().data(),
            .item_sums = sums.data(),
            .slice_sums = sums.data() + items,
            .value_squares = sums.data() + 3 * items + 1,
            .change_squares = sums.data() + 3 * items + 1 + blocks,
            .words = words_.as<cuda::OptimizerWords>().data()};
  }

  const OptimizerSpec spec_;
  const StepRule rule_;
  ParameterSet set_;
  const StateBuffers state_;
  const size_t group_count_;
  const std::unique_ptr<Stream> stream_;  // for tables and counts, while the caller's is idle
  std::vector<cuda::StepItem> host_items_;
  std::vector<uint64_t> host_counts_;
  std::vector<OneBitCounts> host_averages_;
  Buffer items_, blocks_, steps_, counts_, sums_, words_;
  Buffer layers_, averages_, factors_, ratios_;  // of 1-bit optimizers
  std::unique_ptr<StagedUpload> staged_;         // made when it is first needed
  bool reads_ = false;                           // some gradient comes from payloads
};

}  // namespace

std::unique_ptr<Optimizer> make_cuda_optimizer(const OptimizerSpec& spec,
                                               std::vector<Parameter> parameters,
                                               std::vector<ParamGroup> groups) {
  return std::make_unique<CudaOptimizer>(spec, parameters, groups);
}

}  // namespace gradwire
