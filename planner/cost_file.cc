#include "gradwire/planner/cost_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire::planner {
namespace {

constexpr std::string_view kFirstLine = "gradwire-costs 1";

class LineReader {
 public:
  LineReader(std::string_view line, size_t number) : rest_(line), number_(number) {}

  std::string_view word(const char* what) {
    skip_spaces();
    require(!rest_.empty(), "has no ", what);
    const size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return found;
  }

  double number(const char* what) {
    const std::string_view text = word(what);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    require(error == std::errc() && end == text.data() + text.size() && std::isfinite(value), what,
            " is '", text, "', expected a number");
    return value;
  }

  /// What follows the words, without the spaces around it.
  std::string_view text(const char* what) {
    skip_spaces();
    while (!rest_.empty() && rest_.back() == ' ') rest_.remove_suffix(1);
    require(!rest_.empty(), "has no ", what);
    return std::exchange(rest_, {});
  }

  bool at_end() {
    skip_spaces();
    return rest_.empty();
  }

  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    check(condition, "costs: line ", number_, ": ", parts...);
  }

 private:
  void skip_spaces() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }

  std::string_view rest_;
  size_t number_;
};

LinkCost read_link(LineReader& line) {
  LinkCost link;
  link.alpha_s = line.number("alpha");
  link.bytes_per_s = line.number("bandwidth");
  link.efficiency = line.number("efficiency");
  link.stream_bytes_per_s = line.number("bandwidth of a stream");
  link.name = line.text("name");
  validate(link);
  return link;
}

void read_table(LineReader& line, LinkCost& link) {
  line.require(link.bytes_per_s > 0, "a table stands before its link");
  const std::string_view exchange = line.word("exchange");
  const double streams = line.number("number of streams");
  line.require(streams >= 1 && streams == std::floor(streams) && streams <= 1e6, "streams is ",
               streams, ", expected a whole number of at least 1");
  std::vector<SizeTable::Point> points;
  while (!line.at_end()) {
    const double bytes = line.number("bytes");
    points.push_back({bytes, line.number("seconds")});
  }
  const LinkCost::Key key{std::string(exchange == "*" ? "" : exchange), static_cast<int>(streams)};
  const bool added = link.tables.try_emplace(key, SizeTable(std::move(points))).second;
  line.require(added, "a second table of ", exchange, " over ", streams, " streams, expected one");
}

void read_cpu(LineReader& line, LinkCost& link) {
  line.require(link.bytes_per_s > 0, "processor time stands before its link");
  line.require(link.message_cpu_s == 0 && link.cpu_bytes_per_s == 0,
               "a second processor time, expected one");
  link.message_cpu_s = line.number("processor time of a message");
  link.cpu_bytes_per_s = line.number("processor rate");
  validate(link);
}

void read_codec(LineReader& line, Costs& costs) {
  const std::string_view spec = line.word("spec");
  CodecCost cost;
  cost.encode_floor_s = line.number("encode floor");
  cost.encode_bytes_per_s = line.number("encode rate");
  cost.decode_floor_s = line.number("decode floor");
  cost.decode_bytes_per_s = line.number("decode rate");
  validate(cost, spec);
  line.require(costs.codecs.try_emplace(std::string(spec), cost).second, "a second codec ", spec,
               ", expected one");
}

void read_line(std::string_view text, size_t number, CostFile& file) {
  LineReader line(text, number);
  if (line.at_end() || text.starts_with('#')) {
    return;
  }
  const std::string_view word = line.word("word");
  if (word == "machine") {
    line.require(file.machine.empty(), "a second machine, expected one");
    file.machine = line.text("name");
  } else if (word == "link" || word == "node_link") {
    LinkCost& link = word == "link" ? file.costs.link : file.costs.node_link;
    line.require(link.bytes_per_s == 0, "a second ", word, ", expected one");
    link = read_link(line);
  } else if (word == "table" || word == "node_table") {
    read_table(line, word == "table" ? file.costs.link : file.costs.node_link);
  } else if (word == "cpu" || word == "node_cpu") {
    read_cpu(line, word == "cpu" ? file.costs.link : file.costs.node_link);
  } else if (word == "codec") {
    read_codec(line, file.costs);
  } else {
    line.require(false, "unknown word '", word,
                 "', known: machine, link, node_link, table, node_table, cpu, node_cpu, codec");
  }
  if (!line.at_end()) {
    line.require(false, "'", line.text("rest"), "' is more than expected");
  }
}

void require_one_line(std::string_view what, std::string_view text) {
  check(!text.empty() && text.find_first_of("\r\n") == std::string_view::npos &&
            text.front() != ' ' && text.back() != ' ',
        "costs: ", what, " is '", text, "', expected words in one line without spaces around them");
}

void write_link(std::string& out, const LinkCost& link, std::string_view prefix) {
  validate(link);
  require_one_line("the name of a link", link.name);
  out +=
      concat(prefix, "link ", text_of(link.alpha_s), " ", text_of(link.bytes_per_s), " ",
             text_of(link.efficiency), " ", text_of(link.stream_bytes_per_s), " ", link.name, "\n");
  if (link.message_cpu_s > 0 || link.cpu_bytes_per_s > 0) {
    out += concat(prefix, "cpu ", text_of(link.message_cpu_s), " ", text_of(link.cpu_bytes_per_s),
                  "\n");
  }
  for (const auto& [key, table] : link.tables) {
    check(key.exchange.find_first_of(" \r\n") == std::string::npos, "costs: exchange '",
          key.exchange, "', expected a word");
    out += concat(prefix, "table ", key.exchange.empty() ? "*" : key.exchange, " ", key.streams);
    for (const SizeTable::Point& point : table.points()) {
      out += concat(" ", text_of(point.bytes), " ", text_of(point.seconds));
    }
    out += "\n";
  }
}

}  // namespace

CostFile read_costs(std::string_view text) {
  CostFile file;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (number == 1) {
      check(line == kFirstLine, "costs: line 1 is '", line.substr(0, 80), "', expected '",
            kFirstLine, "'");
      continue;
    }
    try {
      read_line(line, number, file);
    } catch (const InvalidArgument& error) {
      const std::string_view message = error.what();
      if (message.starts_with("costs: line ")) {
        throw;
      }
      throw InvalidArgument(concat("costs: line ", number, ": ", message));
    }
  }
  check(number > 0, "costs: no text, expected a first line '", kFirstLine, "'");
  check(file.costs.link.bytes_per_s > 0, "costs: ", number, " lines without a link, expected one");
  return file;
}

std::string write_costs(const CostFile& file) {
  std::string out = concat(kFirstLine, "\n");
  if (!file.machine.empty()) {
    require_one_line("the machine", file.machine);
    out += concat("machine ", file.machine, "\n");
  }
  write_link(out, file.costs.link, "");
  if (file.has_node_link()) {
    write_link(out, file.costs.node_link, "node_");
  }
  for (const auto& [spec, cost] : file.costs.codecs) {
    validate(cost, spec);
    check(!spec.empty() && spec.find_first_of(" \r\n") == std::string::npos, "costs: codec '", spec,
          "', expected a spec without spaces");
    out += concat("codec ", spec, " ", text_of(cost.encode_floor_s), " ",
                  text_of(cost.encode_bytes_per_s), " ", text_of(cost.decode_floor_s), " ",
                  text_of(cost.decode_bytes_per_s), "\n");
  }
  return out;
}

}  // namespace gradwire::planner
