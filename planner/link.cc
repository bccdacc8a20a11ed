#include "gradwire/planner/link.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/units.h"

namespace gradwire::planner {

SizeTable::SizeTable(std::vector<Point> points) : points_(std::move(points)) {
  check(points_.size() >= 2, "size table: ", points_.size(), " points, expected at least 2");
  for (size_t i = 0; i < points_.size(); ++i) {
    const Point& point = points_[i];
    check(std::isfinite(point.bytes) && point.bytes >= 0, "size table: point ", i, " is of ",
          point.bytes, " bytes, must be finite and at least 0");
    check(std::isfinite(point.seconds) && point.seconds > 0, "size table: point ", i, " takes ",
          point.seconds, " s, must be finite and positive");
    if (i > 0) {
      check(point.bytes > points_[i - 1].bytes, "size table: point ", i, " is of ", point.bytes,
            " bytes, must be more than the ", points_[i - 1].bytes, " of the one before");
      check(point.seconds >= points_[i - 1].seconds, "size table: ", point.bytes, " bytes take ",
            point.seconds, " s, must be at least the ", points_[i - 1].seconds,
            " s of fewer bytes");
    }
  }
}

SizeTable::Line SizeTable::line_at(double bytes) const {
  check(std::isfinite(bytes) && bytes >= 0, "size table: ", bytes,
        " bytes, must be finite and at least 0");
  if (bytes < points_.front().bytes) {
    return {points_.front().seconds, 0};
  }
  auto right = std::ranges::upper_bound(points_, bytes, {}, &Point::bytes);
  right = right == points_.end() ? points_.end() - 1 : right;
  const auto left = right - 1;
  const double beta = (right->seconds - left->seconds) / (right->bytes - left->bytes);
  return {left->seconds - beta * left->bytes, beta};
}

double SizeTable::seconds(double bytes) const {
  const Line line = line_at(bytes);
  return line.alpha_s + bytes * line.beta_s_per_byte;
}

double LinkCost::effective_bytes_per_s(int streams) const {
  check(streams >= 1, "link ", name, ": ", streams, " streams, expected at least 1");
  const double most = efficiency * bytes_per_s;
  return stream_bytes_per_s > 0 ? std::min(most, streams * stream_bytes_per_s) : most;
}

double LinkCost::message_seconds(double bytes, std::string_view exchange, int streams) const {
  const double rate = effective_bytes_per_s(streams);  // checks
  check(std::isfinite(bytes) && bytes >= 0, "link ", name, ": a message of ", bytes,
        " bytes, must be finite and at least 0");
  if (!tables.empty()) {
    for (const std::string_view of : {exchange, std::string_view()}) {
      if (const auto found = tables.find({std::string(of), streams}); found != tables.end()) {
        return found->second.seconds(bytes);
      }
    }
  }
  return alpha_s + bytes / rate;
}

double LinkCost::cpu_seconds(double messages, double bytes) const {
  return messages * (message_cpu_s + (cpu_bytes_per_s > 0 ? bytes / cpu_bytes_per_s : 0));
}

void validate(const LinkCost& link) {
  check(std::isfinite(link.bytes_per_s) && link.bytes_per_s > 0, "link '", link.name,
        "': bandwidth is ", link.bytes_per_s, " bytes/s, must be positive and finite");
  check(std::isfinite(link.alpha_s) && link.alpha_s >= 0, "link '", link.name, "': alpha is ",
        link.alpha_s, " s, must be finite and at least 0");
  check(link.efficiency > 0 && link.efficiency <= 1, "link '", link.name, "': efficiency is ",
        link.efficiency, ", must be in (0, 1]");
  check(std::isfinite(link.stream_bytes_per_s) && link.stream_bytes_per_s >= 0, "link '", link.name,
        "': a stream has ", link.stream_bytes_per_s, " bytes/s, must be finite and at least 0");
  check(std::isfinite(link.message_cpu_s) && link.message_cpu_s >= 0, "link '", link.name,
        "': a message takes ", link.message_cpu_s,
        " s of a processor, must be finite and at least 0");
  check(std::isfinite(link.cpu_bytes_per_s) && link.cpu_bytes_per_s >= 0, "link '", link.name,
        "': a processor handles ", link.cpu_bytes_per_s, " bytes/s, must be finite and at least 0");
  for (const auto& [key, table] : link.tables) {
    check(key.streams >= 1, "link '", link.name, "': a table for ", key.streams,
          " streams, expected at least 1");
  }
}

namespace {

constexpr double kGbit = 1e9 / 8;

// Start-up of a message over TCP: the OSU all-reduce of small messages on the two nodes of
// B-Caffe's 10 GbE cluster starts in 114 us, two messages one after another (hclhkbu/B-Caffe,
// logdata). It is the hosts' software, so faster Ethernet has it too.
constexpr double kTcpAlpha = 57e-6;
// Nobody's measurement: a copy has to be started by a driver. Measure where it matters.
constexpr double kCopyAlpha = 10e-6;

std::vector<LinkCost> make_presets() {
  // A positional list would hide which number is which.
  const auto preset = [](const char* name, double alpha_s, double bytes_per_s, const char* source) {
    LinkCost link;
    link.name = name;
    link.alpha_s = alpha_s;
    link.bytes_per_s = bytes_per_s;
    link.source = source;
    return link;
  };
  return {
      // 8 GT/s x 16 lanes x 128/130 coding.
      preset("pcie3", kCopyAlpha, 8e9 * 16 * 128 / 130 / 8,
             "PCI Express Base Specification 3.0, 16 lanes; start-up assumed"),
      // 16 GT/s x 16 lanes x 128/130 coding.
      preset("pcie4", kCopyAlpha, 16e9 * 16 * 128 / 130 / 8,
             "PCI Express Base Specification 4.0, 16 lanes; start-up assumed"),
      // 400 GB/s and 936.25 ns.
      preset("nvlink", 936.25e-9, 400e9, "ASTRA-sim 2, its configuration of an HGX-H100"),
      preset("10gbe", kTcpAlpha, 10 * kGbit,
             "IEEE 802.3ae line rate; start-up: OSU all-reduce in B-Caffe's logs, 2 nodes"),
      preset("25gbe", kTcpAlpha, 25 * kGbit,
             "IEEE 802.3by line rate; start-up as measured on 10gbe"),
      preset("100gbe", kTcpAlpha, 100 * kGbit,
             "IEEE 802.3bj line rate; start-up as measured on 10gbe"),
      // FDR, 4 lanes of 14.0625 Gbaud x 64/66. Start-up: all-reduce over 8 workers of 97.5 us, 14
      // messages one after another.
      preset("infiniband", 97.5e-6 / 14, 14.0625e9 * 4 * 64 / 66 / 8,
             "InfiniBand FDR 4x data rate (56 Gbit/s); start-up: MG-WFBP's fit, 8 workers"),
  };
}

}  // namespace

std::span<const LinkCost> link_presets() {
  static const std::vector<LinkCost> presets = make_presets();
  return presets;
}

LinkCost find_link(std::string_view text) {
  const std::span<const LinkCost> presets = link_presets();
  if (const auto found = std::ranges::find(presets, text, &LinkCost::name);
      found != presets.end()) {
    return *found;
  }
  if (!text.empty() && (text.front() == '.' || (text.front() >= '0' && text.front() <= '9'))) {
    LinkCost link = find_link("10gbe");
    link.name = text;
    link.bytes_per_s = parse_rate_bytes_per_s(text);
    link.source = "given rate; start-up of 10gbe";
    return link;
  }
  std::vector<std::string_view> names;
  for (const LinkCost& preset : presets) {
    names.push_back(preset.name);
  }
  names.push_back("or a rate such as 10gbit or 1.2GB/s");
  throw_unknown_name("link", text, names);
}

}  // namespace gradwire::planner
