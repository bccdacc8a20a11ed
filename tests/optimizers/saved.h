#pragma once
// A checkpoint in memory.

#include "gradwire/optimizers/saved_state.h"
#include "tests/optimizers/model.h"

namespace gradwire {

/// A State as what was saved.
class Saved final : public SavedState {
 public:
  explicit Saved(const State& state) : state_(state) {}
  std::optional<ConstTensorView> tensor(std::string_view parameter,
                                        std::string_view name) override {
    const auto found = state_.tensors.find(concat(parameter, "/", name));
    return found == state_.tensors.end()
               ? std::nullopt
               : std::optional(view_of(std::span<const float>(found->second)));
  }
  std::optional<std::span<const std::byte>> bytes(std::string_view parameter,
                                                  std::string_view name) override {
    const auto found = state_.bytes.find(concat(parameter, "/", name));
    return found == state_.bytes.end() ? std::nullopt
                                       : std::optional(std::span<const std::byte>(found->second));
  }
  std::optional<uint64_t> scalar(std::string_view parameter, std::string_view name) override {
    const auto found = state_.scalars.find(concat(parameter, "/", name));
    return found == state_.scalars.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  const State& state_;
};

inline void load(Optimizer& optimizer, const State& state) {
  Saved saved(state);
  load_state(optimizer, saved);
}

}  // namespace gradwire
