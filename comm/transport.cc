#include "gradwire/comm/transport.h"

#include <algorithm>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/internal/agree.h"
#include "gradwire/comm/transport/gloo.h"
#include "gradwire/comm/transport/in_process.h"
#include "gradwire/comm/transport/mpi.h"
#include "gradwire/comm/transport/nccl.h"
#include "gradwire/comm/transport/point_to_point_transport.h"

namespace gradwire {
namespace {

std::string always_available(const TransportOptions&) { return {}; }

std::unique_ptr<Transport> make_alone(const TransportOptions& options) {
  check(options.world_size == 1, "in_process: world_size is ", options.world_size,
        ", must be 1 here; make_in_process_group() makes a group of threads");
  return std::move(make_in_process_group(1, options)[0]);
}

constexpr TransportRow kRows[] = {
    {"in_process", "threads of one process", always_available, make_alone},
    {"gloo", "TCP between processes, over Gloo's pairs", gloo_unavailable_reason,
     make_gloo_transport},
    {"mpi", "the processes of one mpirun, over MPI's messages", mpi_unavailable_reason,
     make_mpi_transport},
    {"nccl", "NVIDIA GPUs, over NCCL", nccl_unavailable_reason, make_nccl_transport},
};

}  // namespace

void Transport::agree(std::string_view what, std::string_view text, Context& context) {
  check_agreement(what, text, *this, context);
}

std::vector<std::string> Transport::gather_words(std::string_view mine, size_t capacity,
                                                 CallTag tag, Context& context) {
  check(traits().device.type == DeviceType::kCpu, name(), ": gather_words is not there");
  Messages all(world_size(), capacity);
  const auto own = static_cast<size_t>(rank());
  check(mine.size() <= capacity, tag.what, ": length is ", mine.size(), ", capacity is ", capacity);
  all.length(own) = mine.size();
  std::ranges::copy(std::as_bytes(std::span(mine)), all.room(own).begin());
  all_gather(all.length(own), all.room(own), all.parts(), tag, context);
  context.stream.wait();
  std::vector<std::string> words;
  for (size_t r = 0; r < static_cast<size_t>(world_size()); ++r) {
    const auto message = all.message(r);
    words.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
  }
  return words;
}

size_t Pacing::burst_bytes() const {
  return std::max(size_t{8000}, static_cast<size_t>(bits_per_second / 8.0 * 1e-3));
}

std::unique_ptr<Transport> Transport::rebuild(const RebuildOptions&) {
  throw InvalidArgument(concat(name(), ": this transport cannot be rebuilt, start the job again"));
}

std::span<const TransportRow> transport_registry() { return kRows; }

std::unique_ptr<Transport> make_transport(std::string_view name, const TransportOptions& options) {
  std::vector<std::string_view> known;
  for (const TransportRow& row : kRows) {
    if (row.name == name) {
      check(options.world_size >= 1, name, ": world_size is ", options.world_size,
            ", must be at least 1");
      check(options.rank >= 0 && options.rank < options.world_size, name, ": rank is ",
            options.rank, ", must be 0 to ", options.world_size - 1);
      return row.make(options);
    }
    known.push_back(row.name);
  }
  throw_unknown_name("transport", name, known);
}

std::vector<std::unique_ptr<Transport>> make_in_process_group(int world_size,
                                                              const TransportOptions& options) {
  std::vector<std::unique_ptr<Transport>> transports;
  for (auto& engine : make_in_process_engines(world_size)) {
    transports.push_back(make_point_to_point_transport("in_process", std::move(engine), options));
  }
  return transports;
}

}  // namespace gradwire
