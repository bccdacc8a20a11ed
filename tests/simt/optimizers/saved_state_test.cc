// Checkpoints loaded into optimizers on a GPU, converted between float32 and 8 bits: the bits of
// the CPU's, there and in the steps behind.

#include "tests/optimizers/saved.h"
#include "tests/simt/optimizers/pair.h"

namespace gradwire::testing {
namespace {

/// The fourth has codes in two blocks of a step, and a last one that is short.
const std::vector<size_t> kSizes{1, 7, 1025, 17001, 3};

struct Form {
  const char* floats;
  const char* codes;
};
void PrintTo(const Form& form, std::ostream* out) { *out << form.codes; }

class CudaSavedState : public ::testing::TestWithParam<Form> {
 protected:
  static void step(Side& side) {
    const StepOptions options{.learning_rate = 0.1};
    Context c = side.context();
    side.optimizer->prepare(options, c);
    side.stream().wait();
    side.step(options);
  }

  /// What a CPU has saved of three steps with `from` goes on in `to`.
  static void go_on(const char* from, const char* to) {
    Side saved(parse_optimizer(from), kSizes, {}, {});
    Model model(kSizes);
    for (unsigned t = 0; t < 3; ++t) {
      model.fill_gradients(t);
      saved.gradients.set(model.gradients);
      step(saved);
    }
    const State state = read_state(*saved.optimizer);
    Pair pair(parse_optimizer(to), kSizes);
    pair.both([&](Side& side) {
      side.values.copy(saved.values);
      load(*side.optimizer, state);
    });
    pair.expect_same("what was loaded");
    for (unsigned t = 3; t < 5; ++t) {
      pair.fill_gradients(t);
      pair.both(step);
      pair.expect_same("a step behind it");
    }
    pair.gpu.synchronize();
    EXPECT_EQ(pair.gpu.optimizer->exchanges(), saved.optimizer->exchanges());
  }
};
INSTANTIATE_TEST_SUITE_P(
    Rows, CudaSavedState,
    ::testing::Values(
        Form{"sgd:nesterov=1", "sgd:nesterov=1,state=8bit,min_8bit_size=1000"},
        Form{"adamw", "adamw:state=8bit,min_8bit_size=1"},
        Form{"lars", "lars:state=8bit,min_8bit_size=1025"},
        Form{"larc", "larc:state=8bit,min_8bit_size=7"}, Form{"lamb", "lamb:state=8bit"},
        Form{"onebit-adam:freeze_step=2", "onebit-adam:freeze_step=2,state=8bit,min_8bit_size=7"},
        Form{"onebit-lamb:freeze_step=2", "onebit-lamb:freeze_step=2,state=8bit,min_8bit_size=7"}));

TEST_P(CudaSavedState, OfFloatsGoesOnAsCodes) { go_on(GetParam().floats, GetParam().codes); }

TEST_P(CudaSavedState, OfCodesGoesOnAsFloats) { go_on(GetParam().codes, GetParam().floats); }

TEST_P(CudaSavedState, GoesOnAsItIs) { go_on(GetParam().codes, GetParam().codes); }

TEST_P(CudaSavedState, IsRefusedWholeWhereAPieceIsWrong) {
  Pair pair(parse_optimizer(GetParam().codes), kSizes);
  State state = read_state(*pair.cpu.optimizer);
  state.scalars["layer0/step"] = 9;
  state.bytes.begin()->second[0] = std::byte{1};  // its scale is 0
  const Side::Bytes before = pair.gpu.everything();
  const std::string on_cpu = message_of<InvalidArgument>([&] { load(*pair.cpu.optimizer, state); });
  EXPECT_NE(on_cpu.find("code 0 is not 0"), std::string::npos) << on_cpu;
  EXPECT_EQ(message_of<InvalidArgument>([&] { load(*pair.gpu.optimizer, state); }), on_cpu);
  EXPECT_TRUE(pair.gpu.everything() == before);
}

}  // namespace
}  // namespace gradwire::testing
