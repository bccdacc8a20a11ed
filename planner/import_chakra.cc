// Chakra execution traces in JSON.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/importers.h"
#include "gradwire/planner/internal/collectives.h"
#include "gradwire/planner/internal/json_reader.h"

namespace gradwire::planner {
namespace {

enum class Kind : uint8_t { kComputes, kAllReduce, kAllReduceCall, kOther };

struct ChakraNode {
  std::string name, place;
  Kind kind = Kind::kOther;
  bool on_host = false;
  double begin_us = 0, seconds = 0;
  std::optional<JsonNode> comm_size;    // of an all-reduce, in bytes
  std::optional<CollectiveSize> shape;  // of what a collective is called with
  DType dtype = DType::kFloat32;
  size_t numel = 0;                   // 0: nothing says it
  std::vector<size_t> before, after;  // places in the list
  double end_s = 0;                   // of all computing that it waits for, and its own
};

// One of the names that a field has had.
std::optional<JsonNode> field(const JsonNode& node, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (auto found = node.find(name)) {
      return found;
    }
  }
  return std::nullopt;
}

// 64-bit numbers are written as text by some.
double number_in(const JsonNode& node) {
  if (!node.value().is_string()) {
    return node.number();
  }
  const std::string& text = node.value().get_ref<const std::string&>();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value)) {
    node.fail("expected a number");
  }
  return value;
}

double time_us(const JsonNode& node) {
  const double value = number_in(node);
  if (value < 0) {
    node.fail("must be a time of at least 0 us");
  }
  return value;
}

// The value of an attribute: {"name": ..., "int64_val": ...}, or a field of the node itself.
std::optional<JsonNode> attribute(const JsonNode& node, std::string_view name) {
  if (auto direct = node.find(name)) {
    return direct;
  }
  const auto list = node.find("attr");
  for (size_t i = 0; list && i < list->size(); ++i) {
    const JsonNode one = (*list)[i];
    if (one.at("name").text() != name) {
      continue;
    }
    for (const auto& [key, value] : one.value().items()) {
      if (key.ends_with("_val") || key.ends_with("Val")) {
        return one.at(key);
      }
    }
  }
  return std::nullopt;
}

bool is_type(const JsonNode& type, std::string_view name, int number) {
  return type.value().is_string() ? type.text() == name : type.number() == number;
}

bool all_reduces(const JsonNode& node, const std::string& name) {
  if (const auto kind = attribute(node, "comm_type")) {
    return is_type(*kind, "ALL_REDUCE", 0) || number_in(*kind) == 0;
  }
  return name.find("llreduce") != std::string::npos || name.find("llReduce") != std::string::npos ||
         name.find("all_reduce") != std::string::npos;
}

std::optional<CollectiveSize> shape_of(const JsonNode& json) {
  const auto inputs = json.find("inputs");
  const auto shapes = inputs ? inputs->find("shapes") : std::nullopt;
  if (!shapes || !shapes->value().is_string()) {
    return std::nullopt;
  }
  const auto types = inputs->find("types");
  return collective_size(shapes->text(), types ? types->text() : "", shapes->place());
}

// leaves_out_zeros: as protobuf's JSON does, of id and type too.
ChakraNode node_of(const JsonNode& json, bool leaves_out_zeros) {
  ChakraNode node;
  const auto name = field(json, {"name", "Name"});
  node.name = name ? name->text() : "";
  node.place = json.place();
  if (const auto duration =
          field(json, {"duration_micros", "durationMicros", "runtime", "duration"})) {
    node.seconds = time_us(*duration) * 1e-6;
  }
  if (const auto begin = field(json, {"start_time_micros", "startTimeMicros"})) {
    node.begin_us = time_us(*begin);
  }
  const auto host = attribute(json, "is_cpu_op");
  node.on_host = host && (host->value() == true || host->value() == 1 || host->value() == "1");
  const auto type = field(json, {"type", "NodeType", "node_type"});
  check(type.has_value() || leaves_out_zeros, json.place(),
        ": no 'type', expected what kind of node it is");
  if (type && is_type(*type, "COMP_NODE", 4)) {
    node.kind = Kind::kComputes;
  } else if (type && is_type(*type, "COMM_COLL_NODE", 7) && all_reduces(json, node.name) &&
             !sums_whole_numbers(json, node.name)) {
    node.kind = node.on_host ? Kind::kAllReduceCall : Kind::kAllReduce;
    node.comm_size = attribute(json, "comm_size");
    node.shape = shape_of(json);
  }
  return node;
}

// Elements and type, from the node itself or else from the call on the host that it waits for.
void find_size(ChakraNode& node, const std::vector<ChakraNode>& nodes) {
  for (const size_t before : node.before) {
    if (!node.shape && nodes[before].kind == Kind::kAllReduceCall) {
      node.shape = nodes[before].shape;
    }
  }
  const std::optional<DType> said = node.shape ? node.shape->dtype : std::nullopt;
  node.dtype = said ? *said : dtype_in_kernel_name(node.name).value_or(DType::kFloat32);
  if (!node.comm_size) {
    node.numel = node.shape ? node.shape->numel : 0;
    return;
  }
  const double bytes = number_in(*node.comm_size);
  const auto each = static_cast<double>(size_of(node.dtype));
  if (bytes <= 0 || std::fmod(bytes, each) != 0) {
    node.comm_size->fail(
        concat("must be bytes of gradient, ", each, " an element: a multiple of it above 0"));
  }
  node.numel = static_cast<size_t>(bytes / each);
}

std::vector<ChakraNode> nodes_of(const JsonNode& list, bool leaves_out_zeros) {
  std::vector<ChakraNode> nodes;
  std::map<double, size_t> places;
  const auto id_of = [&](size_t i) {
    const auto id = field(list[i], {"id", "Id"});
    check(id.has_value() || leaves_out_zeros, list[i].place(), ": no 'id', expected a number");
    return id ? number_in(*id) : 0.0;
  };
  for (size_t i = 0; i < list.size(); ++i) {
    nodes.push_back(node_of(list[i], leaves_out_zeros));
    check(places.emplace(id_of(i), i).second, list[i].place(), ".id: ", id_of(i),
          " is another node's too, expected each once");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const auto wait_for = [&](const std::optional<JsonNode>& before, bool data) {
      for (size_t d = 0; before && d < before->size(); ++d) {
        const auto found = places.find(number_in((*before)[d]));
        if (found != places.end()) {
          nodes[i].before.push_back(found->second);
          nodes[found->second].after.push_back(i);
        } else if (data) {
          (*before)[d].fail("expected the id of a node in the trace: one is missing");
        }  // else the call around it, which the trace was cut out of
      }
    };
    wait_for(field(list[i], {"data_deps", "dataDeps"}), true);
    wait_for(field(list[i], {"ctrl_deps", "ctrlDeps"}), false);
  }
  for (ChakraNode& node : nodes) {
    if (node.kind == Kind::kAllReduce) {
      find_size(node, nodes);
    }
  }
  return nodes;
}

// An order in which each node comes after what it waits for; of those that can go, the one that
// began first, or that stands first.
std::vector<size_t> ordered(const std::vector<ChakraNode>& nodes) {
  const auto later = [&](size_t a, size_t b) {
    return nodes[a].begin_us != nodes[b].begin_us ? nodes[a].begin_us > nodes[b].begin_us : a > b;
  };
  std::priority_queue<size_t, std::vector<size_t>, decltype(later)> free(later);
  std::vector<size_t> waits(nodes.size()), order;
  for (size_t i = 0; i < nodes.size(); ++i) {
    waits[i] = nodes[i].before.size();
    if (waits[i] == 0) {
      free.push(i);
    }
  }
  while (!free.empty()) {
    const size_t next = free.top();
    free.pop();
    order.push_back(next);
    for (const size_t after : nodes[next].after) {
      if (--waits[after] == 0) {
        free.push(after);
      }
    }
  }
  const auto held = std::ranges::find_if(waits, [](size_t n) { return n > 0; });
  if (held != waits.end()) {
    const ChakraNode& node = nodes[static_cast<size_t>(held - waits.begin())];
    check(false, node.place, ": node '", node.name,
          "' waits for a cycle of nodes, expected dependencies without one");
  }
  return order;
}

// The list of what chakra_jsonizer writes: objects one behind another, with nothing between. None
// where the text is one value.
std::optional<std::string> list_of_objects(std::string_view text) {
  std::string list = "[";
  size_t depth = 0, objects = 0;
  bool quoted = false, escaped = false;
  for (const char c : text) {
    if (quoted) {
      quoted = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (depth == 0 && c == '[') {
        return std::nullopt;  // a list as it should be
      }
      if (depth++ == 0 && ++objects > 1) {
        list += ',';
      }
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
    list += c;
  }
  return objects > 1 ? std::optional(list + "]") : std::nullopt;
}

// What torch.profiler's ExecutionTraceObserver writes, and chakra_trace_link after it: "nodes" is Chakra's
// word too, but these have no type.
void refuse_pytorchs(const JsonNode& whole, const JsonNode& nodes, std::string_view name) {
  const auto schema = whole.find("schema");
  if (!schema || nodes.size() == 0 || field(nodes[0], {"type", "NodeType", "node_type"})) {
    return;
  }
  throw InvalidArgument(concat(
      name, ": is PyTorch's execution trace (ExecutionTraceObserver, schema ", schema->value().dump(),
      "), expected a Chakra trace in JSON: chakra_trace_link joins this file and the Kineto trace of the "
      "same step, chakra_converter makes a Chakra trace of both, chakra_jsonizer writes it as JSON; or "
      "give the Kineto trace itself (--format kineto)"));
}

// What the trace does not say, whoever reads it has to.
void fill_sizes(std::span<ChakraNode* const> exchanges, std::span<const size_t> elements,
                std::string_view name) {
  if (!elements.empty()) {
    check(elements.size() == exchanges.size(), name, ": elements of ", elements.size(),
          " all-reduces are given, the trace has ", exchanges.size(),
          ", expected one for each, in the order in which they leave");
    for (size_t i = 0; i < elements.size(); ++i) {
      exchanges[i]->numel = elements[i];
    }
  }
  for (const ChakraNode* node : exchanges) {
    check(
        node->numel > 0, node->place, ": all-reduce '", node->name,
        "' has no comm_size and no shapes of inputs, expected one of them, or the elements of each "
        "all-reduce, in the order in which they leave (--elements)");
  }
}

}  // namespace

Profile import_chakra(std::string_view json, size_t batch, std::string_view name,
                      std::span<const size_t> elements) {
  const std::optional<std::string> listed = list_of_objects(json);
  Json parsed = parse_json(listed ? *listed : json, name);
  if (listed && !parsed[0].contains("name") && !parsed[0].contains("type")) {
    parsed.erase(0);  // what the trace says of itself
  }
  const JsonNode whole(parsed, concat(name, ": "));
  const auto inside = parsed.is_object() ? field(whole, {"nodes", "workload_graph"}) : std::nullopt;
  check(parsed.is_array() || inside, name,
        ": no list of nodes, expected an array, objects one behind another, or an object with "
        "'nodes' or 'workload_graph'");
  if (inside) {
    refuse_pytorchs(whole, *inside, name);
  }
  std::vector<ChakraNode> nodes = nodes_of(inside ? *inside : whole, listed.has_value());
  const bool has_device = std::ranges::any_of(
      nodes, [](const ChakraNode& n) { return n.kind == Kind::kComputes && !n.on_host; });
  Profile profile;
  profile.model = name;
  profile.source = "Chakra";
  profile.batch = batch;
  double now_s = 0, before_s = 0;
  for (const size_t i : ordered(nodes)) {
    ChakraNode& node = nodes[i];
    for (const size_t before : node.before) {
      node.end_s = std::max(node.end_s, nodes[before].end_s);
    }
    if (node.kind == Kind::kComputes && (!node.on_host || !has_device)) {
      now_s += node.seconds;
      node.end_s = now_s;
    } else if (node.kind == Kind::kAllReduce && node.end_s == 0) {
      node.end_s = now_s;  // it waits for calls of the host alone: what stands before it has run
    }
  }
  std::vector<ChakraNode*> exchanges;
  for (ChakraNode& node : nodes) {
    if (node.kind == Kind::kAllReduce) {
      exchanges.push_back(&node);
    }
  }
  check(!exchanges.empty(), name,
        ": no all-reduce on the device, expected one per bucket of gradients: all layers are "
        "missing");
  std::ranges::stable_sort(exchanges, {}, &ChakraNode::end_s);
  fill_sizes(exchanges, elements, name);
  const bool timed =
      std::ranges::all_of(exchanges, [](const ChakraNode* n) { return n->seconds > 0; });
  for (const ChakraNode* node : exchanges) {
    LayerProfile layer;
    layer.name = concat("bucket ", profile.layers.size());
    layer.numel = node->numel;
    layer.dtype = node->dtype;
    layer.backward_s = node->end_s - before_s;
    layer.ready_s = before_s = node->end_s;
    if (timed) {
      layer.exchange_s = node->seconds;
    }
    profile.layers.push_back(std::move(layer));
  }
  const double numel = static_cast<double>(profile.numel());
  for (LayerProfile& layer : profile.layers) {
    layer.update_s = (now_s - before_s) * static_cast<double>(layer.numel) / numel;
  }
  std::ranges::reverse(profile.layers);  // the first bucket: the last layers
  validate(profile, name);
  return profile;
}

}  // namespace gradwire::planner
