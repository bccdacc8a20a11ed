// Factors of low rank on a GPU; low_rank.cc says what they are. Two buffers of factors change
// places with the residuals: the step reads one side from the committed one, and what it learns
// goes to the other with the tag of the step it is for. Of two rounds the host knows which one its
// calls are in, since they have one order; the left factors of the first one lie in a buffer of
// their own.

#include <algorithm>
#include <cstring>

#include "gradwire/kernels/compress/internal/cuda_format.h"
#include "gradwire/kernels/compress/internal/factor_layout.h"
#include "gradwire/kernels/compress/internal/factor_state.h"
#include "gradwire/kernels/core/thread_pool.h"
#include "gradwire/kernels/ops/lowrank_cuda.h"

namespace gradwire {
namespace {

std::vector<cuda::RowTask> row_tasks(const FactorLayout& layout) {
  std::vector<cuda::RowTask> tasks;
  for (uint32_t m = 0; m < layout.matrices().size(); ++m) {
    for (uint32_t row = 0; row < layout.matrices()[m].rows; row += cuda::kRowsOfBlock) {
      tasks.push_back({m, row});
    }
  }
  return tasks;
}

/// The tiles of all matrices, and where the sums of each matrix begin; the end of all is the last.
std::vector<cuda::TileTask> tile_tasks(const FactorLayout& layout, uint32_t rank,
                                       std::vector<uint64_t>& begins) {
  std::vector<cuda::TileTask> tasks;
  begins = {0};
  for (uint32_t m = 0; m < layout.matrices().size(); ++m) {
    const LowRankMatrix& matrix = layout.matrices()[m];
    uint64_t sums = begins.back();
    for (uint32_t row = 0; row < matrix.rows; row += rows_of_tile(rank)) {
      for (uint32_t col = 0; col < matrix.cols; col += cuda::kColsOfBlock) {
        tasks.push_back({m, row, col, sums});
      }
      sums += uint64_t{rank} * matrix.cols;
    }
    begins.push_back(sums);
  }
  return tasks;
}

class CudaLowRank final : public CudaFormat {
 public:
  CudaLowRank(std::unique_ptr<ChunkedFormat> on_cpu, CompressorShape of)
      : CudaFormat(std::move(on_cpu), std::move(of)),
        layout_(shape().segments, spec().choice.rank, spec().choice.rounds),
        either_(std::max(layout_.factors(FactorSide::kLeft), layout_.factors(FactorSide::kRight))),
        matrices_(table_of(layout_.matrices())),
        runs_(table_of(layout_.plain_runs())),
        rows_(table_of<cuda::RowTask>(row_tasks(layout_))),
        drawn_{spec().choice.rounds == 2 ? Buffer() : drawn(FactorSide::kLeft),
               drawn(FactorSide::kRight)},
        factors_{Buffer(either_ * sizeof(float), shape().device),
                 Buffer(either_ * sizeof(float), shape().device)},
        tags_(table_of<cuda::FactorTag>(std::vector<cuda::FactorTag>(2))),
        covered_(sizeof(uint32_t), shape().device),
        first_(two_rounds()
                   ? Buffer(layout_.factors(FactorSide::kLeft) * sizeof(float), shape().device)
                   : Buffer()),
        made_at_(read_words()) {
    std::vector<uint64_t> begins;
    tiles_ = table_of<cuda::TileTask>(tile_tasks(layout_, spec().choice.rank, begins));
    tile_sums_ = table_of<uint64_t>(begins);
    sums_ = begins.back();
  }

  void take_first(std::span<const ConstPayload> parts, float scale, Context& context) override;
  void merge(const MergeInput& input, Residual e_next, Payload out, Context& context) override;

  std::vector<uint64_t> state() const override;
  void set_state(std::span<const uint64_t> state) override {
    take([state](Format& on_cpu) { on_cpu.set_state(state); });
  }
  void learn_from(std::span<const uint64_t> state) override {
    take([state](Format& on_cpu) { on_cpu.learn_from(state); });
  }

 protected:
  void encode(const Encoding& what, Context& context) override;
  void add_up(const Addition& what, Context& context) override;
  void copy_slice(const Slicing& what, Context& context) override;

 private:
  template <class T>
  Buffer table_of(std::span<const T> entries) const {
    return upload(std::as_bytes(entries));
  }
  Buffer drawn(FactorSide side) const {
    std::vector<float> factors(layout_.factors(side));
    draw_factors(layout_, spec().choice.rank, side, shape().seed, factors);
    ThreadPool one(1);
    cpu::orthonormalise(layout_.matrices(), spec().choice.rank, side, factors.data(), one);
    return table_of<float>(factors);
  }
  /// The factors of the next step become what teach(on_cpu) makes of the CPU's format that has them.
  template <class Teach>
  void take(const Teach& teach);
  /// Where there is no matrix no kernel writes a tag: each step since the compressor was made leaves the
  /// factors of none, as a state that was given.
  bool knows_of_none(const cuda::StepWords& words) const {
    const uint32_t first = words.epoch == made_at_.epoch ? made_at_.step : 0;
    return words.step > first || given_in_ == words.epoch;
  }
  bool two_rounds() const { return traits().rounds() == 2; }
  /// Of factors that the step before has left.
  FactorSide side_learned(uint32_t step) const {
    return spec().choice.rounds == 1 ? side_of_step(step - 1) : FactorSide::kRight;
  }
  /// Of which side what a call writes or decodes is, where the step does not say it.
  std::optional<FactorSide> side_of_round(bool second) const {
    if (spec().choice.rounds == 1) {
      return std::nullopt;
    }
    return two_rounds() && !second ? FactorSide::kLeft : FactorSide::kRight;
  }
  cuda::FactorTables tables(std::optional<FactorSide> side) const {
    return {.matrices = matrices_.as<const LowRankMatrix>(),
            .runs = runs_.as<const PlainRun>(),
            .rows = rows_.as<const cuda::RowTask>(),
            .tiles = tiles_.as<const cuda::TileTask>(),
            .tile_sums = tile_sums_.as<const uint64_t>(),
            .rank = spec().choice.rank,
            .numel = shape().numel,
            .plain = layout_.plain(FactorSide::kRight),
            .left = layout_.factors(FactorSide::kLeft),
            .right = layout_.factors(FactorSide::kRight),
            .side = side,
            .plain_beside_left = !two_rounds()};
  }
  cuda::FactorTables tables() const { return tables(side_of_round(first_taken_)); }
  cuda::FactorBasis basis() const {
    return {.drawn_left = drawn_[0].as<float>().data(),
            .drawn_right = drawn_[1].as<float>().data(),
            .even = factors_[0].as<float>().data(),
            .odd = factors_[1].as<float>().data(),
            .first = first_.as<float>().data(),
            .tags = tags_.as<cuda::FactorTag>().data(),
            .step = step_words()};
  }
  /// The checked parts of a table; those that fail are left out of it.
  std::span<const cuda::FactorPart> open(std::span<const cuda::DevicePart> table,
                                         cuda::PartSide side, Workspace::Frame& frame,
                                         Context& context) const;
  /// Their sum, as floats of a body.
  std::span<const float> sum_of(std::span<const cuda::DevicePart> table, float scale,
                                Workspace::Frame& frame, Context& context) const;

  const FactorLayout layout_;
  const size_t either_;  // floats of the factors of the larger side
  const Buffer matrices_, runs_, rows_;
  const Buffer drawn_[2], factors_[2];
  const Buffer tags_, covered_;
  const Buffer first_;        // orthonormal left factors, from the first round
  bool first_taken_ = false;  // since the last compress()
  Buffer tiles_, tile_sums_;
  size_t sums_ = 0;  // floats of all tiles
  const cuda::StepWords made_at_;
  std::optional<uint32_t> given_in_;  // the epoch
};

std::vector<uint64_t> CudaLowRank::state() const {
  const cuda::StepWords words = read_words();
  cuda::FactorTag tags[2];
  read_memory(tags_.bytes(), std::as_writable_bytes(std::span(tags)));
  const cuda::FactorTag tag = tags[words.parity];
  const bool known = layout_.matrices().empty()
                         ? knows_of_none(words)
                         : tag.step == words.step && tag.epoch == words.epoch;
  if (!known) {
    return {};
  }
  std::vector<float> factors(either_);
  read_memory(factors_[words.parity].bytes(), std::as_writable_bytes(std::span(factors)));
  return pack_factors(layout_, spec().choice.rank, side_learned(words.step), factors);
}

// What is right of a state is known there.
template <class Teach>
void CudaLowRank::take(const Teach& teach) {
  CompressorShape shape_on_cpu = shape();
  shape_on_cpu.device = {};
  const auto on_cpu = find_compressor(spec().name).make(spec(), shape_on_cpu);
  const cuda::StepWords words = read_words();
  on_cpu->set_step(words.step);
  on_cpu->set_state(state());
  teach(*on_cpu);
  const std::vector<uint64_t> learned = on_cpu->state();
  if (learned.empty()) {
    return;
  }
  const FactorSide side = side_learned(words.step);
  const std::vector<const uint64_t*> places = find_factors(learned, layout_, spec().choice.rank);
  std::vector<float> factors(either_);
  for (size_t m = 0; m < places.size(); ++m) {
    const LowRankMatrix& matrix = layout_.matrices()[m];
    std::memcpy(factors.data() + matrix.at(side), places[m],
                size_t{spec().choice.rank} * matrix.length(side) * sizeof(float));
  }
  write_memory(std::as_bytes(std::span(factors)), factors_[words.parity].bytes());
  given_in_ = words.epoch;
  const cuda::FactorTag tag{words.step, words.epoch};
  write_memory(std::as_bytes(std::span(&tag, 1)),
               tags_.bytes().subspan(words.parity * sizeof tag, sizeof tag));
}

std::span<const cuda::FactorPart> CudaLowRank::open(std::span<const cuda::DevicePart> table,
                                                    cuda::PartSide side, Workspace::Frame& frame,
                                                    Context& context) const {
  const auto parts = frame.take<cuda::FactorPart>(table.size());
  // Only what the base class has opened on this stream comes here; it owns nothing else of it.
  const std::span<cuda::DevicePart> entries(const_cast<cuda::DevicePart*>(table.data()),
                                            table.size());
  cuda::open_factors(entries, side, tables(), step_words(), parts, covered_.as<uint32_t>().data(),
                     context.stream);
  return parts;
}

std::span<const float> CudaLowRank::sum_of(std::span<const cuda::DevicePart> table, float scale,
                                           Workspace::Frame& frame, Context& context) const {
  const auto parts = open(table, cuda::PartSide::kOfTables, frame, context);
  const auto sums = frame.take<float>(layout_.plain(FactorSide::kRight) + either_);
  cuda::sum_factors(parts, scale, tables(), step_words(), sums, context.stream);
  return sums;
}

void CudaLowRank::take_first(std::span<const ConstPayload> parts, float scale, Context& context) {
  Workspace::Frame frame(context.workspace);
  first_taken_ = false;
  const auto sums = sum_of(open_any(parts, frame, context), scale, frame, context);
  cuda::take_first_factors(sums, covered_.as<uint32_t>().data(), tables(), basis(), step_words(),
                           context.stream);
  first_taken_ = true;
}

// A first payload takes nothing from x.
void CudaLowRank::encode(const Encoding& what, Context& context) {
  check(!what.second || first_taken_, spec().name,
        ": compress_second() comes before take_first(), expected after");
  first_taken_ = what.second;
  const bool takes = what.second || !two_rounds();
  Workspace::Frame frame(context.workspace);
  cuda::encode_factors({what.x, what.e, what.given}, tables(), basis(),
                       {.e_next = takes ? what.e_next : cuda::ParitySpan(),
                        .body = what.body.data(),
                        .seal = what.seal,
                        .factors = frame.take<float>(either_),
                        .sums = frame.take<float>(sums_)},
                       context.stream);
}

void CudaLowRank::add_up(const Addition& what, Context& context) {
  check(!two_rounds() || first_taken_, spec().name,
        ": decompress() comes before take_first(), expected after");
  Workspace::Frame frame(context.workspace);
  const auto sums = sum_of(what.parts, what.scale, frame, context);
  cuda::decode_factors({sums, what.sum, what.onto, what.overflow}, tables(), basis(),
                       context.stream);
  if (!what.onto) {
    cuda::learn_factors(sums, covered_.as<uint32_t>().data(), tables(), basis(), context.stream);
  }
}

void CudaLowRank::copy_slice(const Slicing& what, Context& context) {
  Workspace::Frame frame(context.workspace);
  const auto parts = open(what.table, cuda::PartSide::kOfFirstPart, frame, context);
  cuda::slice_factors({.table = what.table,
                       .parts = parts,
                       .region = {what.region.begin, what.region.end},
                       .header = on_cpu().header_of(what.region, 0, 0),
                       .out = what.out.data()},
                      tables(), context.stream);
}

// Floats add up as they are: nothing is encoded anew, and nothing is put back.
void CudaLowRank::merge(const MergeInput& input, Residual, Payload out, Context& context) {
  Workspace::Frame frame(context.workspace);
  const auto table = frame.take<cuda::DevicePart>(input.slices.size());
  cuda::open_parts(input.slices, expected_parts(input.region, true), table,
                   {step_words(), &call_words()->flags}, context.stream);
  cuda::merge_factors(open(table, cuda::PartSide::kOfFirstPart, frame, context), input.scale,
                      {input.region.begin, input.region.end}, tables(), seal_for(input.region, out),
                      step_words(), context.stream);
}

}  // namespace

std::unique_ptr<Format> make_cuda_low_rank(std::unique_ptr<ChunkedFormat> on_cpu,
                                           CompressorShape shape) {
  return std::make_unique<CudaLowRank>(std::move(on_cpu), std::move(shape));
}

}  // namespace gradwire
