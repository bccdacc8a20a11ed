// The file format of profiles (docs/profile-format.md).

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/json_reader.h"
#include "gradwire/planner/profile.h"

namespace gradwire::planner {
namespace {

constexpr std::string_view kFormat = "gradwire.profile";
constexpr size_t kVersion = 1;
constexpr std::string_view kDTypes[] = {"float32", "float16", "bfloat16"};  // in the order of DType

DType dtype_of(const JsonNode& node) {
  const std::string name = node.text();
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (name == kDTypes[i]) {
      return static_cast<DType>(i);
    }
  }
  throw_unknown_name(node.place(), name, kDTypes);
}

std::optional<double> optional_number(const JsonNode& node, std::string_view key) {
  const std::optional<JsonNode> value = node.find(key);
  return value ? std::optional(value->number()) : std::nullopt;
}

LayerProfile layer_of(const JsonNode& node) {
  node.expect_keys({"name", "numel", "dtype", "forward_s", "backward_s", "ready_s", "compress_s",
                    "exchange_s", "exchange_cpu_s", "decompress_s", "update_s"});
  LayerProfile layer;
  layer.name = node.at("name").text();
  layer.numel = node.at("numel").count();
  if (const auto dtype = node.find("dtype")) {
    layer.dtype = dtype_of(*dtype);
  }
  layer.forward_s = node.at("forward_s").number();
  layer.backward_s = node.at("backward_s").number();
  layer.ready_s = optional_number(node, "ready_s");
  layer.compress_s = optional_number(node, "compress_s");
  layer.exchange_s = optional_number(node, "exchange_s");
  layer.exchange_cpu_s = optional_number(node, "exchange_cpu_s");
  layer.decompress_s = optional_number(node, "decompress_s");
  layer.update_s = optional_number(node, "update_s");
  return layer;
}

template <class Object, class Value>
void set_if(Object& object, const char* key, const std::optional<Value>& value) {
  if (value) {
    object[key] = *value;
  }
}

}  // namespace

Profile parse_profile(std::string_view json, std::string_view name) {
  const Json parsed = parse_json(json, name);
  const JsonNode root(parsed, concat(name, ": "));
  root.expect_keys(
      {"format", "version", "model", "machine", "source", "batch", "ranks", "step", "layers"});
  const JsonNode format = root.at("format");
  if (format.text() != kFormat) {
    format.fail(concat("must be \"", kFormat, "\""));
  }
  const JsonNode version = root.at("version");
  if (version.count() != kVersion) {
    version.fail("must be 1: this build reads no other version");
  }
  Profile profile;
  profile.model = root.at("model").text();
  if (const auto machine = root.find("machine")) {
    profile.machine = machine->text();
  }
  if (const auto source = root.find("source")) {
    profile.source = source->text();
  }
  profile.batch = root.at("batch").count();
  profile.ranks = root.at("ranks").count();
  const JsonNode step = root.at("step");
  step.expect_keys({"io_s", "host_to_device_s", "other_s", "hand_over_s", "measured_s"});
  profile.io_s = optional_number(step, "io_s").value_or(0);
  profile.host_to_device_s = optional_number(step, "host_to_device_s").value_or(0);
  profile.other_s = optional_number(step, "other_s").value_or(0);
  profile.hand_over_s = optional_number(step, "hand_over_s").value_or(0);
  profile.measured_step_s = optional_number(step, "measured_s");
  const JsonNode layers = root.at("layers");
  for (size_t l = 0; l < layers.size(); ++l) {
    profile.layers.push_back(layer_of(layers[l]));
  }
  validate(profile, name);
  return profile;
}

Profile read_profile(const std::string& path) { return parse_profile(read_text(path), path); }

std::string to_json(const Profile& profile) {
  using Ordered = nlohmann::ordered_json;
  Ordered step = {{"io_s", profile.io_s},
                  {"host_to_device_s", profile.host_to_device_s},
                  {"other_s", profile.other_s}};
  if (profile.hand_over_s > 0) {
    step["hand_over_s"] = profile.hand_over_s;
  }
  if (profile.measured_step_s) {
    step["measured_s"] = *profile.measured_step_s;
  }
  Ordered root = {{"format", kFormat},         {"version", kVersion},
                  {"model", profile.model},    {"machine", profile.machine},
                  {"source", profile.source},  {"batch", profile.batch},
                  {"ranks", profile.ranks},    {"step", step},
                  {"layers", Ordered::array()}};
  for (const LayerProfile& layer : profile.layers) {
    Ordered row = {{"name", layer.name},
                   {"numel", layer.numel},
                   {"dtype", kDTypes[static_cast<size_t>(layer.dtype)]},
                   {"forward_s", layer.forward_s},
                   {"backward_s", layer.backward_s}};
    set_if(row, "ready_s", layer.ready_s);
    set_if(row, "compress_s", layer.compress_s);
    set_if(row, "exchange_s", layer.exchange_s);
    set_if(row, "exchange_cpu_s", layer.exchange_cpu_s);
    set_if(row, "decompress_s", layer.decompress_s);
    set_if(row, "update_s", layer.update_s);
    root["layers"].push_back(std::move(row));
  }
  return root.dump(1, ' ', false, Ordered::error_handler_t::replace) + "\n";
}

}  // namespace gradwire::planner
