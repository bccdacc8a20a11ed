// Layer graphs of PipeDream's profiler.

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/importers.h"
#include "gradwire/planner/internal/table_reader.h"

namespace gradwire::planner {
namespace {

struct Node {
  std::string what;
  double forward_ms = 0, backward_ms = 0;
  size_t parameter_bytes = 0;
  std::set<std::string> before;  // whose outputs it takes
};
using Nodes = std::map<std::string, Node>;

// "forward_compute_time=1.5": the number; lists in brackets hold commas of no interest here.
double value_of(std::string_view text, std::string_view key, std::string_view place) {
  const std::string whole = concat(key, "=");
  const size_t at = text.find(whole);
  check(at != std::string_view::npos, place, "no '", whole, "', expected one");
  const size_t begin = at + whole.size();
  const double value =
      number_of(trimmed(text.substr(begin, text.find(',', begin) - begin)), place, key);
  check(value >= 0 && value < 1e15, place, key, ": ", value, ", must be at least 0");
  return value;
}

Node node_of(std::string_view what, std::string_view numbers, std::string_view place) {
  Node node;
  node.what = what;
  node.forward_ms = value_of(numbers, "forward_compute_time", place);
  node.backward_ms = value_of(numbers, "backward_compute_time", place);
  node.parameter_bytes = static_cast<size_t>(value_of(numbers, "parameter_size", place));
  check(node.parameter_bytes % 4 == 0, place, "parameter_size: ", node.parameter_bytes,
        " bytes, must be a multiple of 4, of float32 parameters");
  return node;
}

Nodes nodes_of(std::string_view text, std::string_view name) {
  constexpr std::string_view kJoint = " -- ";
  Nodes nodes;
  std::vector<std::pair<Line, std::pair<std::string, std::string>>> edges;
  for (const Line& line : lines_of(text)) {
    const std::string place = place_of(name, line);
    const size_t first = line.text.find(kJoint);
    const size_t last = line.text.rfind(kJoint);
    check(first != std::string_view::npos, place, "'", line.text.substr(0, 60),
          "', must be 'node -- layer -- times' or 'node -- node'");
    const std::string id(line.text.substr(0, first));
    const std::string_view rest = line.text.substr(last + kJoint.size());
    if (first == last) {
      edges.push_back({line, {id, std::string(rest)}});
      continue;
    }
    const size_t begin = first + kJoint.size();
    const bool added =
        nodes.emplace(id, node_of(line.text.substr(begin, last - begin), rest, place)).second;
    check(added, place, "a second '", id, "', expected one");
  }
  for (const auto& [line, edge] : edges) {
    for (const std::string& end : {edge.first, edge.second}) {
      check(nodes.contains(end), place_of(name, line), "no node '", end,
            "', expected one of those with times");
    }
    nodes[edge.second].before.insert(edge.first);
  }
  return nodes;
}

// Of those that can come next the one that the file numbers first.
std::vector<std::string> in_order(const Nodes& nodes, std::string_view name) {
  const auto by_number = [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  };
  std::vector<std::string> left;
  for (const auto& [id, node] : nodes) {
    left.push_back(id);
  }
  std::sort(left.begin(), left.end(), by_number);
  std::vector<std::string> order;
  std::set<std::string> done;
  while (!left.empty()) {
    const auto next = std::find_if(left.begin(), left.end(), [&](const std::string& id) {
      return std::includes(done.begin(), done.end(), nodes.at(id).before.begin(),
                           nodes.at(id).before.end());
    });
    check(next != left.end(), name, ": a cycle among ", left.size(), " nodes, '", left[0],
          "' one of them or after it, expected an order without one");
    order.push_back(*next);
    done.insert(*next);
    left.erase(next);
  }
  return order;
}

}  // namespace

Profile import_pipedream(std::string_view text, size_t batch, std::string_view name) {
  const Nodes nodes = nodes_of(text, name);
  check(!nodes.empty(), name, ": no nodes, expected lines 'node -- layer -- times'");
  Profile profile;
  profile.model = name;
  profile.source = "PipeDream";
  profile.batch = batch;
  for (const std::string& id : in_order(nodes, name)) {
    const Node& node = nodes.at(id);
    if (node.what.starts_with("Input")) {
      profile.io_s += node.forward_ms * 1e-3;
      continue;
    }
    profile.layers.push_back({.name = concat(id, " ", node.what),
                              .numel = node.parameter_bytes / 4,
                              .forward_s = node.forward_ms * 1e-3,
                              .backward_s = node.backward_ms * 1e-3});
  }
  validate(profile, name);
  return profile;
}

}  // namespace gradwire::planner
