#pragma once
// A few parameters with gradients, and an optimizer's state as a value that can be compared.

#include <algorithm>
#include <cstring>
#include <map>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "gradwire/optimizers/optimizer.h"

namespace gradwire {

inline void PrintTo(const OptimizerSpec& spec, std::ostream* out) { *out << to_string(spec); }

inline constexpr unsigned kModelSeed = 20240607;

/// What is special about sizes: one element, less than a lane group, both sides of a chunk of 1024,
/// several blocks with a ragged end.
inline const std::vector<size_t> kModelSizes{1, 7, 1023, 1024, 1025, 100003};

/// Group 0 takes everything from the spec; 1 is what biases get; 2 has its own rate and decay.
inline std::vector<ParamGroup> model_groups() {
  return {{},
          {.weight_decay = 0.0, .adapt = false},
          {.weight_decay = 0.25, .learning_rate_scale = 0.5}};
}

struct Model {
  explicit Model(const std::vector<size_t>& sizes = kModelSizes) {
    std::mt19937 random(kModelSeed);
    std::normal_distribution<float> normal;
    for (size_t size : sizes) {
      std::vector<float>& value = values.emplace_back(size);
      for (float& x : value) {
        x = normal(random);
      }
      gradients.emplace_back(size);
    }
    fill_gradients(0);
  }

  void fill_gradients(unsigned step) {
    std::mt19937 random(kModelSeed + 1 + step);
    std::normal_distribution<float> normal(0.0f, 0.1f);
    for (std::vector<float>& gradient : gradients) {
      for (float& x : gradient) {
        x = normal(random);
      }
    }
  }

  /// Parameter i is called "layer<i>" and is in group i % group_count.
  std::vector<Parameter> parameters(size_t group_count = 1) {
    std::vector<Parameter> result;
    for (size_t i = 0; i < values.size(); ++i) {
      result.push_back({.name = "layer" + std::to_string(i),
                        .value = view_of(std::span(values[i])),
                        .gradient = view_of(std::span(gradients[i])),
                        .group = i % group_count});
    }
    return result;
  }

  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> gradients;
};

/// All state by "parameter/name".
struct State {
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, std::vector<std::byte>> bytes;
  std::map<std::string, uint64_t> scalars;
};

inline State read_state(Optimizer& optimizer) {
  struct Reader : StateVisitor {
    void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
      const std::span<float> elements = value.as<float>();
      state.tensors[std::string(parameter) + "/" + std::string(name)].assign(elements.begin(),
                                                                             elements.end());
    }
    void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> value,
               Device) override {
      state.bytes[concat(parameter, "/", name)].assign(value.begin(), value.end());
    }
    void scalar(std::string_view parameter, std::string_view name, uint64_t& value) override {
      state.scalars[std::string(parameter) + "/" + std::string(name)] = value;
    }
    State state;
  } reader;
  optimizer.visit_state(reader);
  return reader.state;
}

inline void write_state(Optimizer& optimizer, const State& state) {
  struct Writer : StateVisitor {
    explicit Writer(const State& source) : from(source) {}
    void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
      const std::vector<float>& elements =
          from.tensors.at(std::string(parameter) + "/" + std::string(name));
      check(elements.size() == value.numel, "state of another size");
      std::memcpy(value.data, elements.data(), value.size_bytes());
    }
    void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> value,
               Device) override {
      const std::vector<std::byte>& codes = from.bytes.at(concat(parameter, "/", name));
      check(codes.size() == value.size(), "state of another size");
      std::ranges::copy(codes, value.begin());
    }
    void scalar(std::string_view parameter, std::string_view name, uint64_t& value) override {
      value = from.scalars.at(std::string(parameter) + "/" + std::string(name));
    }
    const State& from;
  } writer(state);
  optimizer.visit_state(writer);
}

/// Equal as bytes: -0 and +0 differ, equal NaNs do not.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool same_bits(const std::vector<std::vector<float>>& a,
                      const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return same_bits(x, y); });
}

inline bool same_bits(const State& a, const State& b) {
  return a.scalars == b.scalars && a.bytes == b.bytes &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && same_bits(x.second, y.second);
                    });
}

/// Runs action(context) on a stream of its own.
template <class Action>
void on_stream(int threads, const Action& action) {
  const std::unique_ptr<Stream> stream = make_inline_stream(threads);
  Workspace workspace;
  Context context{*stream, workspace};
  action(context);
  stream->wait();
}

inline void prepare(Optimizer& optimizer, int threads = 1) {
  on_stream(threads, [&](Context& context) { optimizer.prepare(context); });
}

inline void apply(Optimizer& optimizer, double learning_rate, int threads = 1) {
  on_stream(threads, [&](Context& context) { optimizer.apply(learning_rate, context); });
}

/// One step of a rank that is alone.
inline void step(Optimizer& optimizer, double learning_rate, int threads = 1) {
  on_stream(threads, [&](Context& context) {
    optimizer.prepare(context);
    optimizer.apply(learning_rate, context);
  });
}

/// An exchange: every rank's gradients become the mean of all.
inline void average(std::vector<Model>& ranks) {
  for (size_t l = 0; l < ranks[0].gradients.size(); ++l) {
    for (size_t i = 0; i < ranks[0].gradients[l].size(); ++i) {
      double sum = 0.0;
      for (const Model& rank : ranks) {
        sum += static_cast<double>(rank.gradients[l][i]);
      }
      for (Model& rank : ranks) {
        rank.gradients[l][i] = static_cast<float>(sum / static_cast<double>(ranks.size()));
      }
    }
  }
}

/// The message of the Expected exception that `action` throws, else what happened instead.
template <class Expected, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace gradwire
