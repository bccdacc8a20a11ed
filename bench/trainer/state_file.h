#pragma once
// Named pieces in a file: what a checkpoint holds beside what the Reducer saves itself.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/optimizers/optimizer.h"
#include "gradwire/optimizers/saved_state.h"

namespace trainer {

/// The file, little-endian without padding:
///   "GWTS" u32 version (1), then per piece u32 kind (1 floats, 2 bytes, 3 number), u32 and the
///   characters of the parameter's name, u32 and those of the piece's, u64 count and its values
///   (float32, bytes, one u64); last u64, FNV-1a 64 of everything before.
/// Collects pieces; add an optimizer's by `optimizer.visit_state(writer)`, its stream being idle.
/// What lies on a GPU is copied on `stream`, which is of that GPU and waited for.
class StateWriter final : public gradwire::StateVisitor {
 public:
  explicit StateWriter(gradwire::Stream* stream = nullptr);

  void floats(std::string_view parameter, std::string_view name, std::span<const float> values);
  void number(std::string_view parameter, std::string_view name, uint64_t value);

  void tensor(std::string_view parameter, std::string_view name,
              gradwire::TensorView value) override;
  void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> value,
             gradwire::Device device) override;
  void scalar(std::string_view parameter, std::string_view name, uint64_t& value) override;

  /// Writes the file and waits until the disk has it.
  /// @throws std::system_error naming the path.
  void write(const std::string& path);

 private:
  void begin(uint32_t kind, std::string_view parameter, std::string_view name, uint64_t count);
  void append(std::span<const std::byte> bytes);
  void append_from(std::span<const std::byte> bytes, gradwire::Device device);

  gradwire::Stream* stream_;
  std::string content_;
};

/// What a StateWriter wrote, checked whole when it is opened.
class StateReader final : public gradwire::SavedState {
 public:
  /// @throws gradwire::InvalidArgument naming the file and what is wrong with it.
  explicit StateReader(const std::string& path);

  std::string name_of(std::string_view parameter, std::string_view name) const override;
  std::optional<gradwire::ConstTensorView> tensor(std::string_view parameter,
                                                  std::string_view name) override;
  std::optional<std::span<const std::byte>> bytes(std::string_view parameter,
                                                  std::string_view name) override;
  std::optional<uint64_t> scalar(std::string_view parameter, std::string_view name) override;

  /// @throws gradwire::InvalidArgument where it is missing or of another size.
  std::span<const float> floats(std::string_view parameter, std::string_view name, size_t numel);
  uint64_t number(std::string_view parameter, std::string_view name);

 private:
  struct Piece {
    uint32_t kind = 0;
    std::vector<std::byte> values;  // of its own, so that floats are aligned
  };
  const Piece* find(uint32_t kind, std::string_view parameter, std::string_view name) const;

  std::string path_;
  std::map<std::pair<std::string, std::string>, Piece> pieces_;
};

}  // namespace trainer
