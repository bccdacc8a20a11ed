// What a user's program does: two ranks in threads compress and exchange a gradient, then step an
// optimizer. Checked: nothing is lost, and both ranks end with the same parameters.

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <gradwire/comm/reducer.h>
#include <gradwire/optimizers/optimizer.h>

namespace {

constexpr size_t kNumel = 64 * 32;
constexpr int kRanks = 2;

float gradient_of(int rank, size_t i) {
  return std::sin(static_cast<float>(i * (static_cast<size_t>(rank) + 2)));
}

struct Outcome {
  std::vector<float> parameters = std::vector<float>(kNumel, 1.0f);
  std::vector<float> mean = std::vector<float>(kNumel);
  std::vector<float> residual;
  std::exception_ptr error;
};

void train_one_step(gradwire::Transport& transport, Outcome& outcome) {
  const std::vector<gradwire::ParamInfo> parameters = {{"weight", {64, 32}}};
  gradwire::Reducer reducer(
      gradwire::make_plan(parameters, {.spec = gradwire::parse_spec("topk:10%")}), transport);
  const gradwire::Gradient gradient = reducer.gradient(0);
  const std::span<float> values = gradient.as<float>();
  for (size_t i = 0; i < kNumel; ++i) {
    values[i] = gradient_of(transport.rank(), i);
  }
  reducer.grad_ready(0);
  reducer.wait();
  outcome.mean.assign(values.begin(), values.end());
  const gradwire::ConstResidual residual = reducer.residual(0);
  outcome.residual.assign(residual.begin(), residual.end());

  const auto value = gradwire::view_of(std::span<float>(outcome.parameters));
  const auto optimizer =
      gradwire::make_optimizer(gradwire::parse_optimizer("lamb"), {{"weight", value, gradient}});
  const auto stream = gradwire::make_cpu_stream();
  gradwire::Workspace workspace;
  gradwire::Context context{*stream, workspace};
  optimizer->apply(0.01, context);
  stream->wait();
}

int fail(const char* what) {
  std::fprintf(stderr, "consumer: %s\n", what);
  return 1;
}

/// Why there is no transport "gloo" with this plugin_path; "" where there is one.
std::string no_gloo(const std::string& plugin_path) {
  gradwire::TransportOptions options;
  options.plugin_path = plugin_path;
  for (const gradwire::TransportRow& row : gradwire::transport_registry()) {
    if (row.name == "gloo") {
      return row.unavailable_reason(options);
    }
  }
  return "no row of the registry";
}

}  // namespace

// With the argument plugin_path=PATH: says why there is no transport "gloo" with that path.
int main(int count, char** words) {
  const std::string word = count == 2 ? words[1] : "", name = "plugin_path=";
  if (word.starts_with(name)) {
    std::printf("gloo: '%s'\n", no_gloo(word.substr(name.size())).c_str());
    return 0;
  }
  const auto transports = gradwire::make_in_process_group(kRanks);
  std::vector<Outcome> outcomes(kRanks);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      try {
        train_one_step(*transports[r], outcomes[r]);
      } catch (...) {
        outcomes[r].error = std::current_exception();
        transports[r]->abort("the consumer failed");
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  for (const Outcome& outcome : outcomes) {
    if (outcome.error) {
      std::rethrow_exception(outcome.error);  // ends the program with the message
    }
  }
  for (size_t i = 0; i < kNumel; ++i) {
    const float sent =
        2 * outcomes[0].mean[i] + outcomes[0].residual.at(i) + outcomes[1].residual.at(i);
    if (std::fabs(sent - gradient_of(0, i) - gradient_of(1, i)) > 1e-6f) {
      return fail("mean and residuals do not add up to the gradients");
    }
  }
  if (outcomes[0].parameters != outcomes[1].parameters) {
    return fail("the ranks' parameters differ");
  }
  if (outcomes[0].parameters == std::vector<float>(kNumel, 1.0f)) {
    return fail("the optimizer changed nothing");
  }
  return 0;
}
