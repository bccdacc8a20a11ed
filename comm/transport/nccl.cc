#include "gradwire/comm/transport/nccl.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/internal/address.h"
#include "gradwire/comm/internal/agree.h"
#include "gradwire/comm/internal/host_words.h"
#include "gradwire/comm/internal/interface.h"
#include "gradwire/comm/internal/nccl_calls.h"
#include "gradwire/comm/internal/nccl_world.h"
#include "gradwire/comm/store.h"
#include "gradwire/kernels/core/extents.h"
#include "gradwire/kernels/core/of_process.h"

namespace gradwire {
namespace {

// Calls whose statuses can be under way at once before one is overwritten unread.
constexpr size_t kStatuses = 256;

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::shared_ptr<NcclWorld> world, NcclMembers members, NcclOptions options)
      : world_(std::move(world)),
        members_(std::make_shared<const NcclMembers>(std::move(members))),
        options_(options),
        rank_(static_cast<int>(std::find(members_->ranks.begin(), members_->ranks.end(),
                                         world_->rank()) -
                               members_->ranks.begin())),
        device_{DeviceType::kCuda, world_->device_index()},
        words_((2 * kStatuses + 1) * sizeof(uint64_t), device_),
        communicator_(world_->join(*members_, nccl_config_of(world_->library(), options_))) {}

  // An orderly end where all calls have passed; otherwise the communicator is aborted.
  ~NcclTransport() override {
    if (!process_.here()) {
      process_.let_go(communicator_);
      process_.let_go(words_);
      process_.let_go(world_);
      return;
    }
    const bool drained = world_->drain(communicator_.get(), world_->timeout());
    const bool failed = world_->failure().has_value();
    if (failed || !drained || !communicator_->close(world_->timeout())) {
      communicator_->abort();
    }
  }

  std::string_view name() const override { return "nccl"; }
  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(members_->ranks.size()); }
  TransportTraits traits() const override {
    return {.device = device_, .true_lengths = false, .sums_in_rank_order = false};
  }

  void all_gather(const size_t& length, std::span<const std::byte> mine, Parts all, CallTag tag,
                  Context& context) override {
    check_parts("all_gather", all);
    check(mine.size() >= all.stride, "all_gather: mine has ", mine.size(),
          " bytes, must have the stride's ", all.stride, ": whole strides travel");
    check_length("all_gather", length, all.stride);
    run({"all_gather", all.stride}, tag, context,
        [&](const NcclFunctions& nccl, NcclCommHandle* comm, void* stream) {
          return nccl.all_gather(mine.data(), all.bytes.data(), all.stride, NcclType::kUint8, comm,
                                 stream);
        });
    count(peers() * all.stride, peers() * all.stride, peers());
    std::fill(all.lengths.begin(), all.lengths.end(), all.stride);
  }

  void all_to_all(Parts send, Parts receive, CallTag tag, Context& context) override {
    check_parts("all_to_all", send);
    check_parts("all_to_all", receive);
    check(send.stride == receive.stride, "all_to_all: send has a stride of ", send.stride,
          ", receive of ", receive.stride, ", must be equal");
    for (const size_t length : send.lengths) {
      check_length("all_to_all", length, send.stride);
    }
    run({"all_to_all", send.stride}, tag, context,
        [&](const NcclFunctions& nccl, NcclCommHandle* comm, void* stream) {
          return exchange_parts({nccl, comm, stream}, send, receive);
        });
    count(peers() * send.stride, peers() * send.stride, peers());
    std::fill(receive.lengths.begin(), receive.lengths.end(), receive.stride);
  }

  void reduce_scatter(std::span<const float> values, std::span<float> out, CallTag tag,
                      Context& context) override {
    const size_t expected = own_shard(values.size());
    check(out.size() == expected, "reduce_scatter: out has ", out.size(), " elements, expected ",
          expected);
    run({"reduce_scatter", values.size()}, tag, context,
        [&](const NcclFunctions& nccl, NcclCommHandle* comm, void* stream) {
          return scatter_sums({nccl, comm, stream}, values, out, {rank_, world_size()});
        });
    const size_t own = out.size_bytes();
    count(values.size_bytes() - own, peers() * own, peers());
  }

  void all_reduce_sum(std::span<float> values, CallTag tag, Context& context) override {
    run({"all_reduce_sum", values.size()}, tag, context,
        [&](const NcclFunctions& nccl, NcclCommHandle* comm, void* stream) {
          return nccl.all_reduce(values.data(), values.data(), values.size(), NcclType::kFloat32,
                                 NcclReduction::kSum, comm, stream);
        });
    const size_t own = own_shard(values.size()) * sizeof(float);
    count(values.size_bytes() - own + peers() * own, values.size_bytes() - own + peers() * own,
          2 * peers());
  }

  void broadcast(std::span<std::byte> bytes, int root, CallTag tag, Context& context) override {
    check(root >= 0 && root < world_size(), "broadcast: root is ", root, ", must be 0 to ",
          world_size() - 1);
    run({"broadcast", bytes.size()}, tag, context,
        [&](const NcclFunctions& nccl, NcclCommHandle* comm, void* stream) {
          return nccl.broadcast(bytes.data(), bytes.data(), bytes.size(), NcclType::kUint8, root,
                                comm, stream);
        });
    const bool sends = root == rank_;
    count(sends ? peers() * bytes.size() : 0, sends ? 0 : bytes.size(), sends ? peers() : 0);
  }

  void barrier(CallTag tag, Context& context) override {
    run({"barrier", 1}, tag, context,
        [&](const NcclFunctions& nccl, NcclCommHandle* comm, void* stream) {
          uint64_t* const word = words_.as<uint64_t>().data() + 2 * kStatuses;
          return nccl.all_reduce(word, word, 1, NcclType::kUint64, NcclReduction::kMin, comm,
                                 stream);
        });
    count(0, 0, peers());
  }

  std::unique_ptr<Transport> split(int color) override {
    check(color >= 0, "split: color is ", color, ", must be at least 0");
    const auto lock = one_at_a_time();
    return guarded([&]() -> std::unique_ptr<Transport> {
      const auto colors = world_->gather(
          *members_, {reinterpret_cast<const char*>(&color), sizeof(color)}, "nccl: split");
      NcclMembers chosen;
      for (size_t place = 0; place < colors.size(); ++place) {
        if (colors[place] == colors[static_cast<size_t>(rank_)]) {
          chosen.ranks.push_back(members_->ranks[place]);
        }
      }
      chosen.group = fnv1a(concat(members_->group, "/", ++splits_, "/", color));
      return std::make_unique<NcclTransport>(world_, std::move(chosen), options_);
    });
  }

  void abort(std::string_view reason) noexcept override {
    if (process_.here()) {  // else the group is the other process's
      world_->close(TransportError(std::string(reason)));
    }
  }
  void throw_if_failed() const override { world_->check(); }

  void agree(std::string_view what, std::string_view text, Context&) override {
    const auto lock = one_at_a_time();
    check_same_text(
        what, guarded([&] { return gather_different_texts(text, rank_, rounds_about(what)); }));
  }

  std::vector<std::string> gather_words(std::string_view mine, size_t capacity, CallTag tag,
                                        Context&) override {
    const auto lock = one_at_a_time();
    return guarded([&] { return gather_host_words(mine, capacity, tag, rounds_about(tag.what)); });
  }

  std::shared_ptr<void> register_buffer(std::span<std::byte> bytes) override {
    const auto lock = one_at_a_time();
    void* const handle = guarded([&] { return communicator_->register_buffer(bytes); });
    const auto release = [communicator = communicator_](void* registered) {
      communicator->unregister_buffer(registered);
    };
    return handle == nullptr ? nullptr : std::shared_ptr<void>(handle, release);
  }

  TrafficCounters counters() const override {
    return {bytes_sent_.load(), bytes_received_.load(), frames_sent_.load()};
  }

 private:
  struct Verb {
    std::string_view name;
    size_t size = 0;  ///< nothing is called where it is 0, on any rank
  };

  std::unique_lock<std::mutex> one_at_a_time() {
    process_.check_here(name());
    return std::unique_lock(calls_);
  }

  uint64_t peers() const { return members_->ranks.size() - 1; }
  size_t own_shard(size_t count) const {
    return shard_begin(count, world_size(), rank_ + 1) - shard_begin(count, world_size(), rank_);
  }

  void check_parts(std::string_view verb, const Parts& parts) const {
    const auto size = members_->ranks.size();
    check(parts.lengths.size() == size && parts.bytes.size() >= product_of(parts.stride, size),
          verb, ": ", parts.bytes.size(), " bytes and ", parts.lengths.size(), " lengths for ",
          size, " parts of ", parts.stride, " bytes");
  }
  // A fault of this rank alone: the others must not wait for the call that it will never make.
  void check_length(std::string_view verb, size_t length, size_t capacity) {
    if (length > capacity) {
      const std::string error =
          concat(verb, ": length is ", length, ", capacity is ", capacity);
      abort(concat("rank ", members_->ranks[static_cast<size_t>(rank_)], ": ", error));
      throw InvalidArgument(error);
    }
  }

  /// Runs `call`; what it throws ends the world.
  template <class F>
  auto guarded(const F& call) -> decltype(call()) {
    world_->check();
    try {
      return call();
    } catch (const TransportError& error) {
      const TransportError reason = world_->explain(error);
      world_->close(reason);
      world_->fail(reason);
    } catch (const std::exception& error) {
      world_->close(TransportError(concat("nccl: rank ", world_->rank(), ": ",
                                          error.what()),
                                   world_->rank()));
      throw;
    }
  }

  template <class F>
  void run(const Verb& verb, CallTag tag, Context& context, const F& enqueue) {
    check(context.stream.device() == device_, verb.name, ": the stream is of another device, must ",
          "be of GPU ", device_.index, " as the transport is");
    const auto lock = one_at_a_time();
    guarded([&] {
      NcclCall call{.verb = verb.name, .tag = tag, .members = members_,
                    .communicator = communicator_.get()};
      const int gone = world_->control().left_of(members_->ranks);
      if (gone >= 0) {
        throw TransportError(concat(call.what(), ": rank ", gone, " left the group"), gone);
      }
      call.sequence = ++sequence_;
      world_->control().entered(members_->group);
      if (verb.size == 0) {
        return;
      }
      const bool captured = cuda::is_capturing(context.stream);
      uint64_t* const status = captured ? nullptr : write_status(verb, call, context.stream);
      if (!captured) {
        call.status = status;
        call.begin = world_->take_event();
        call.end = world_->take_event();
        call.begin->record(context.stream);
      }
      void* const stream = context.stream.native_handle();
      communicator_->call(call.what(), [&](const NcclFunctions& nccl, NcclCommHandle* comm) {
        NcclResult result = enqueue(nccl, comm, stream);
        if (status != nullptr) {
          result = first_failure(result, nccl.all_reduce(status, status, 2, NcclType::kUint64,
                                                         NcclReduction::kMin, comm, stream));
        }
        return result;
      });
      if (!captured) {
        call.end->record(context.stream);
        world_->watch(std::move(call));
      }
    });
  }

  /// What all ranks must have in common, and its complement, in device memory; null where calls are
  /// not compared.
  uint64_t* write_status(const Verb& verb, const NcclCall& call, Stream& stream) {
    if (options_.compare != NcclOptions::Compare::kEveryCall) {
      return nullptr;
    }
    const uint64_t parts[] = {fnv1a(verb.name), verb.size, call.tag.fingerprint, call.sequence};
    const uint64_t hash = fnv1a(std::as_bytes(std::span(parts)));
    const uint64_t words[] = {hash, ~hash};
    uint64_t* const slot =
        words_.as<uint64_t>().data() + 2 * static_cast<size_t>(call.sequence % kStatuses);
    copy_bytes({reinterpret_cast<std::byte*>(slot), sizeof(words)}, device_,
               std::as_bytes(std::span(words)), {}, stream);
    return slot;
  }

  HostRounds rounds_about(std::string_view what) {
    const size_t at_once = ControlGroup::kMostGathered / members_->ranks.size();
    return {.round = [this, what](
                         std::string_view mine) { return world_->gather(*members_, mine, what); },
            .most_bytes = at_once - std::min(at_once, sizeof(uint32_t))};
  }

  void count(uint64_t sent, uint64_t received, uint64_t frames) {
    bytes_sent_ += sent;
    bytes_received_ += received;
    frames_sent_ += frames;
  }

  const OfProcess process_;
  const std::shared_ptr<NcclWorld> world_;
  const std::shared_ptr<const NcclMembers> members_;
  const NcclOptions options_;
  const int rank_;
  const Device device_;
  Buffer words_;  // statuses, and the barrier's word
  const std::shared_ptr<NcclCommunicator> communicator_;
  std::mutex calls_;  // one at a time
  uint64_t sequence_ = 0, splits_ = 0;
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0}, frames_sent_{0};
};

void check_same_version(const std::vector<std::string>& versions) {
  for (size_t r = 1; r < versions.size(); ++r) {
    check(versions[r] == versions[0], "nccl: rank ", r, " has NCCL ", versions[r],
          ", rank 0 has ", versions[0], ", must be the same");
  }
}

}  // namespace

std::string nccl_unavailable_reason(const TransportOptions& options) {
#if !GRADWIRE_WITH_NCCL
  return "gradwire was built without it";
#endif
  if (const std::string reason = cuda::unavailable_reason(); !reason.empty()) {
    return reason;
  }
  try {
    open_nccl(options.plugin_path);
    return {};
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

std::unique_ptr<Transport> make_nccl_transport(const TransportOptions& options) {
#if !GRADWIRE_WITH_NCCL
  throw DeviceError("nccl: " + nccl_unavailable_reason(options));
#endif
  return make_nccl_transport(open_nccl(options.plugin_path), options);
}

std::unique_ptr<Transport> make_nccl_transport(const NcclLibrary& library,
                                               const TransportOptions& options) {
  check(options.timeout.count() > 0, "nccl: timeout is ", options.timeout.count(),
        " ms, must be positive");
  check(options.pacing.bits_per_second == 0, "nccl: links cannot be paced here");
  const std::string& interface = wished_interface(options);
  check_interface("nccl", interface);
  const int devices = cuda::device_count();
  if (devices == 0) {
    throw DeviceError(concat("nccl: no GPU: ", cuda::unavailable_reason()));
  }
  check(options.nccl.device_index >= 0 && options.nccl.device_index < devices,
        "nccl: device_index is ", options.nccl.device_index, ", must be in [0, ", devices, ")");
  const auto store = make_store(options.store, options.rank, options.timeout, access_of(options));
  const std::vector<std::string> offers = meet(*store, "address", options.rank, options.world_size,
                                               address_offer(interface, store->local_address()));
  ControlGroup::Place place;
  if (options.rank == 0) {
    place = ControlGroup::open_place(chosen_address(offers, 0, interface));
    const auto bytes = std::as_bytes(std::span(&place.invitation, 1));
    store->set("nccl/control", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } else {
    const std::vector<char> bytes = store->get("nccl/control");
    check(bytes.size() == sizeof(place.invitation), "nccl: rank 0 left ", bytes.size(), " bytes in ",
          store->address(), ", expected ", sizeof(place.invitation));
    std::memcpy(&place.invitation, bytes.data(), bytes.size());
  }
  NcclMembers everyone;
  for (int r = 0; r < options.world_size; ++r) {
    everyone.ranks.push_back(r);
  }
  const auto world = std::make_shared<NcclWorld>(
      library,
      NcclWorld::Options{.rank = options.rank,
                         .world_size = options.world_size,
                         .device_index = options.nccl.device_index,
                         .timeout = options.timeout},
      place.invitation, std::move(place.listener));
  check_same_version(
      world->gather(everyone, nccl_version_text(library.version), "nccl: meeting"));
  if (options.rank == 0) {
    store->clear();  // all have met: nobody reads it any more
  }
  return std::make_unique<NcclTransport>(world, std::move(everyone), options.nccl);
}

}  // namespace gradwire
