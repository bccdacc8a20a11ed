#include "gradwire/planner/cost.h"

#include <array>
#include <bit>
#include <cmath>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

double floor_and_rate(double floor_s, double bytes, double bytes_per_s) {
  return floor_s + (bytes_per_s > 0 ? bytes / bytes_per_s : 0);
}

double levels_up(int world_size) {
  return std::bit_width(static_cast<unsigned>(world_size - 1));  // ceil(log2 P)
}

double priced(const MessagePath& path, std::string_view pattern, const LinkCost& link,
              int streams) {
  if (path.messages == 0) {
    return 0;
  }
  return path.messages * link.message_seconds(path.bytes / path.messages, pattern, streams);
}

}  // namespace

double CodecCost::encode_s(double dense_bytes) const {
  return floor_and_rate(encode_floor_s, dense_bytes, encode_bytes_per_s);
}

double CodecCost::decode_s(double dense_bytes, double payloads) const {
  return payloads * floor_and_rate(decode_floor_s, dense_bytes, decode_bytes_per_s);
}

void validate(const CodecCost& cost, std::string_view codec) {
  const auto require = [codec](const char* what, double value) {
    check(std::isfinite(value) && value >= 0, "cost of codec '", codec, "': ", what, " is ", value,
          ", must be finite and at least 0");
  };
  require("encode floor (s)", cost.encode_floor_s);
  require("encode rate (bytes/s)", cost.encode_bytes_per_s);
  require("decode floor (s)", cost.decode_floor_s);
  require("decode rate (bytes/s)", cost.decode_bytes_per_s);
}

ExchangePath pattern_path(std::string_view pattern, const ExchangeLoad& load, int servers) {
  check(load.world_size >= 1, "exchange cost: world_size is ", load.world_size,
        ", must be at least 1");
  check(servers >= 1, "exchange cost: ", servers, " servers, expected at least 1");
  const double bytes = static_cast<double>(load.payload_bytes);
  if (pattern == "tree") {
    const double messages = load.world_size == 1 ? 0 : 2 * levels_up(load.world_size);
    return {.between = {messages, messages * bytes}, .within = {}};
  }
  if (pattern == "parameter_server") {
    // The server is a machine of its own: a single rank pays its way there and back too.
    const double messages = 2.0 * load.world_size;
    return {.between = {messages, messages * bytes / servers}, .within = {}};
  }
  return exchange_path(pattern, load);
}

double exchange_seconds(std::string_view pattern, const ExchangeLoad& load, const Costs& costs,
                        int streams) {
  const ExchangePath path = pattern_path(pattern, load);
  return priced(path.between, pattern, costs.link, streams) +
         priced(path.within, pattern, costs.node_link, streams);
}

double closed_form_seconds(std::string_view form, double bytes, int world_size,
                           const LinkCost& link, int streams) {
  check(world_size >= 1, "closed form: world_size is ", world_size, ", must be at least 1");
  check(std::isfinite(bytes) && bytes >= 0, "closed form: ", bytes,
        " bytes, must be finite and at least 0");
  const double ranks = world_size;
  MessagePath path;
  if (form == "ring" || form == "two_shot") {
    path = {2 * (ranks - 1), 2 * (ranks - 1) * bytes / ranks};
  } else if (form == "allgather") {
    path = {ranks - 1, (ranks - 1) * bytes};
  } else if (form == "tree") {
    const double messages = world_size == 1 ? 0 : 2 * levels_up(world_size);
    path = {messages, messages * bytes};
  } else {
    throw_unknown_name("closed form", form,
                       std::array<std::string_view, 4>{"ring", "tree", "allgather", "two_shot"});
  }
  return priced(path, form, link, streams);
}

}  // namespace gradwire::planner
