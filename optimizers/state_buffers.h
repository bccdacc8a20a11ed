#pragma once
// The memory of an optimizer's state, by name: of each parameter floats, or codes of 8 bits with
// their blocks' scales (state_code.h).

#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "gradwire/optimizers/parameter_set.h"

namespace gradwire {

class StateBuffers {
 public:
  /// Of the set's parameters and in their memory; zeros.
  StateBuffers(const ParameterSet& set, std::vector<std::string_view> names);

  const std::vector<std::string_view>& names() const { return names_; }
  size_t size_bytes() const;
  void visit(const ParameterSet::Item& item, StateVisitor& visitor) const;

  /// Whether a parameter's state of this place is codes: not where a maximum is taken over it,
  /// which random rounding would raise (of onebit-lamb's v').
  bool coded(const ParameterSet::Item& item, size_t place) const {
    return item.has_codes && has_codes(place);
  }
  /// All of a parameter's state of this place among the names, where it is floats and where it is
  /// codes; nothing where it is the other. Parameters begin at 64-byte boundaries, and codes may be
  /// written up to the next.
  std::span<float> floats(const ParameterSet::Item& item, size_t place) const;
  std::span<uint8_t> codes(const ParameterSet::Item& item, size_t place) const;
  std::span<float> scales(const ParameterSet::Item& item, size_t place) const;
  /// Whether the codes of this place have a sign: all but those of mean squares.
  bool has_sign(size_t place) const { return state_has_sign(names_[place]); }

  /// The piece's elements on the CPU: where they are, or decoded to `scratch`.
  std::span<float> load(const ParameterSet::Item& item, const ParameterSet::Piece& piece,
                        size_t place, std::span<float, kStepPiece> scratch) const;
  /// Encodes what load() gave of the places `first`, `first` + 1, .., and was changed; `item` has
  /// made its steps but this one.
  void store(const ParameterSet::Item& item, const ParameterSet::Piece& piece,
             std::initializer_list<std::span<const float>> changed, size_t first = 0) const;

 private:
  bool has_codes(size_t place) const { return names_[place] != "exp_avg_sq_fresh"; }

  struct Memory {
    Buffer floats, codes, scales;
  };

  std::vector<std::string_view> names_;
  Device device_;
  std::vector<Memory> memory_;  // per name
};

}  // namespace gradwire
