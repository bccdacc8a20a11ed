#pragma once
// The layer-wise profile of a training step: what every prediction starts from. Its file format is
// docs/profile-format.md.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire::planner {

/// A parameter tensor, or a layer of several, or one without parameters. All times are in seconds
/// on one worker.
struct LayerProfile {
  std::string name;
  size_t numel = 0;  ///< elements of its gradient; 0: nothing to exchange
  DType dtype = DType::kFloat32;
  double forward_s = 0;
  double backward_s = 0;
  /// When its gradient was there, counted from the beginning of backward; where a profile has
  /// these, all layers with elements do, and they say in which order gradients appear.
  std::optional<double> ready_s{};
  std::optional<double> compress_s{};
  /// Measured exchange, copies between devices included. Where some layers of a profile have one, a
  /// layer without travels with the next one in the order of backward that has.
  std::optional<double> exchange_s{};
  /// What the processor of each worker does of that exchange.
  std::optional<double> exchange_cpu_s{};
  std::optional<double> decompress_s{};
  std::optional<double> update_s{};

  double bytes() const;  ///< of the gradient, uncompressed
};

/// One training step on one worker, its layers in the order of the forward pass.
struct Profile {
  std::string model;
  std::string machine;  ///< what ran it, in words; may be empty
  std::string source;   ///< which command or publication; may be empty
  size_t batch = 1;     ///< samples per worker and step
  size_t ranks = 1;     ///< workers when it was measured

  double io_s = 0;              ///< loading and preparing a batch
  double host_to_device_s = 0;  ///< copying it
  /// Computation before backward that no layer carries, e.g. a forward pass known as a whole.
  double other_s = 0;
  /// What handing a bucket over takes of those who compute: a hook, a queue. Of each bucket.
  double hand_over_s = 0;
  std::optional<double> measured_step_s{};

  std::vector<LayerProfile> layers;

  double forward_s() const;  ///< of all layers, and other_s
  double backward_s()
      const;  ///< of all layers, or until the last gradient was ready if that is later
  double update_s() const;
  size_t numel() const;
  double gradient_bytes() const;
};

/// No layer: of backward after its last gradient was ready.
inline constexpr uint32_t kNoLayer = UINT32_MAX;

/// A stretch of the backward pass that ends with the gradient of `layer`.
struct BackwardPart {
  uint32_t layer = 0;
  double seconds = 0;
};

/// The backward pass in the order in which gradients appear: by ready_s where there are any, else
/// from the last layer to the first. The parts' seconds add up to profile.backward_s().
std::vector<BackwardPart> backward_parts(const Profile& profile);

/// @throws InvalidArgument, with `name` of the profile in front (a file, a line, ...): no layers,
/// two of one name, times that are negative, not finite or so long or so short that they cannot be
/// seconds, a backward pass of 0 s, ready times of some layers only.
void validate(const Profile& profile, std::string_view name = "profile");

/// The profile whose other_s makes a step on one worker take `step_s`: its constant, fitted on one
/// worker and then kept. @throws InvalidArgument where the layers alone take longer.
Profile calibrated(Profile profile, double step_s);

/// Reads the JSON of docs/profile-format.md and validates it. `name` stands in messages before the
/// place in the text: "run.json: layers[3].forward_s: ...".
/// @throws InvalidArgument for anything the format does not know, and for what validate() refuses.
Profile parse_profile(std::string_view json, std::string_view name = "profile");
Profile read_profile(const std::string& path);

/// What parse_profile reads back to an equal profile.
std::string to_json(const Profile& profile);
/// The columns of the S-SGD traces, tab-separated: Id, Name, Forward, Backward, Comm
/// (microseconds), Size (bytes). What has no column is left out: import_columns reads back these
/// alone.
std::string to_columns(const Profile& profile);

}  // namespace gradwire::planner
