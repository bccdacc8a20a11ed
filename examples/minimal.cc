// Four ranks, threads of this process, fit a linear model to data of which each holds a quarter.
// With other transports each rank is a process; the loop stays the same.

#include <cmath>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "gradwire/comm/reducer.h"
#include "gradwire/optimizers/optimizer.h"

namespace {

constexpr int kRanks = 4;
constexpr size_t kRows = 16, kColumns = 16, kWeights = kRows * kColumns;
constexpr size_t kExamples = 512;  // of each rank

/// One parameter, the matrix "weight", and the squared error of <weight, x> on one rank's examples.
class LeastSquares {
 public:
  explicit LeastSquares(int rank) : weight_(kWeights), x_(kExamples * kWeights), y_(kExamples) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t i = 0; i < kExamples; ++i) {
      for (size_t j = 0; j < kWeights; ++j) {
        x_[i * kWeights + j] = uniform(random);
        y_[i] += x_[i * kWeights + j] * truth(j);
      }
    }
  }

  std::vector<gradwire::ParamInfo> parameters() const { return {{"weight", {kRows, kColumns}}}; }

  /// What the optimizer updates, and from what.
  std::vector<gradwire::Parameter> tensors(gradwire::Reducer& reducer) {
    return {{"weight", gradwire::view_of(std::span(weight_)), reducer.gradient(0)}};
  }

  /// Writes the gradient where the reducer wants it and says that it is complete.
  void backward(gradwire::Reducer& reducer) const {
    const std::span<float> g = reducer.gradient(0).as<float>();
    std::fill(g.begin(), g.end(), 0.0f);
    for (size_t i = 0; i < kExamples; ++i) {
      const float* x = x_.data() + i * kWeights;
      float error = -y_[i];
      for (size_t j = 0; j < kWeights; ++j) {
        error += x[j] * weight_[j];
      }
      for (size_t j = 0; j < kWeights; ++j) {
        g[j] += error * x[j] / kExamples;
      }
    }
    reducer.grad_ready(0);
  }

  /// The largest distance of a weight from the one that made the data.
  float distance() const {
    float largest = 0;
    for (size_t j = 0; j < kWeights; ++j) {
      largest = std::max(largest, std::abs(weight_[j] - truth(j)));
    }
    return largest;
  }

 private:
  static float truth(size_t j) { return std::sin(static_cast<float>(j)); }

  std::vector<float> weight_, x_, y_;
};

void train(gradwire::Transport& transport, LeastSquares& model) {
  // [readme]
  auto plan = gradwire::make_plan(model.parameters(), {.spec = gradwire::parse_spec("topk:10%")});
  gradwire::Reducer reducer(plan, transport);
  auto optimizer = gradwire::make_optimizer({.name = "sgd", .momentum = 0}, model.tensors(reducer));
  auto stream = gradwire::make_cpu_stream();
  gradwire::Workspace workspace;
  gradwire::Context context{*stream, workspace};
  for (int step = 0; step < 300; ++step) {
    model.backward(reducer);  // calls reducer.grad_ready(p) as each gradient appears
    reducer.wait();           // reducer.gradient(p) is now the mean of all ranks
    optimizer->apply(0.2, context);
    stream->wait();
  }  // [readme-end]
}

}  // namespace

int main() {
  auto transports = gradwire::make_in_process_group(kRanks);
  std::vector<float> distances(kRanks);
  std::vector<std::thread> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      LeastSquares model(r);
      train(*transports[r], model);
      distances[r] = model.distance();
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  bool same = true;
  for (const float distance : distances) {
    same = same && distance == distances[0];
  }
  std::printf("largest error of a weight: %g, %s on all ranks\n", distances[0],
              same ? "the same" : "different");
  return same && distances[0] < 0.05f ? 0 : 1;
}
