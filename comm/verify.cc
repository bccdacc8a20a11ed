#include "gradwire/comm/verify.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <thread>

#include "gradwire/comm/internal/verify_data.h"

namespace gradwire {
namespace {

using namespace verify;

constexpr std::chrono::milliseconds kLateToTheBarrier{5};

/// One call under way. Stays where it is until the stream has passed it.
struct Call {
  Call(size_t send_bytes, size_t receive_bytes, size_t ranks, Device device)
      : send(send_bytes, device),
        receive(receive_bytes, device),
        send_lengths(ranks),
        receive_lengths(ranks, ~size_t{0}) {}
  Area send, receive;
  std::vector<size_t> send_lengths, receive_lengths;
  size_t own_length = 0;
  std::function<void()> compare;
};

/// Which ranks of the world a transport joins: first, first + step, ...
struct Group {
  std::string_view name = "";
  int first = 0;
  int step = 1;
};

class Verification {
 public:
  Verification(Transport& transport, const Group& group, const VerifyOptions& options,
               Context& context)
      : transport_(transport), group_(group), options_(options), context_(context) {}

  /// Every verb at every size; the last of them is a barrier.
  void run(std::span<const size_t> sizes) {
    for (const size_t size : sizes) {
      in_flight([&](int round) { all_gather(size, round); });
      in_flight([&](int round) { all_to_all(size, round); });
      in_flight([&](int round) { reduce_scatter(size, round); });
      in_flight([&](int round) { all_reduce_sum(size, round); });
      for (int root = 0; root < ranks(); ++root) {
        broadcast(size, root);
      }
      finish();
    }
    for (int late = 0; late < ranks(); ++late) {
      barrier(late);
    }
    transport_.barrier(tag(Verb::kBarrier, 1), context_);
    finish();
  }

  void all_gather(size_t size, int round) {
    const size_t stride = size + 5;
    Call& call = begin(stride, places() * stride);
    const Origin mine = {Verb::kAllGather, size, round, rank()};
    call.own_length = length_of(mine);
    // From a buffer of its own and, in odd rounds, from its place among the others.
    Area& source = round % 2 == 0 ? call.send : call.receive;
    const size_t at = round % 2 == 0 ? 0 : own() * stride;
    fill(source.host().subspan(at, call.own_length), mine);
    upload(call);
    transport_.all_gather(call.own_length, source.there().subspan(at, stride),
                          {call.receive.there(), stride, call.receive_lengths},
                          tag(Verb::kAllGather, round), context_);
    download(call, [this, &call, mine, stride] {
      for (int r = 0; r < ranks(); ++r) {
        Origin theirs = mine;
        theirs.source = r;
        expect_part(call, static_cast<size_t>(r), stride, theirs);
      }
    });
  }

  /// Waits for what is under way and compares it.
  void finish() {
    context_.stream.wait();
    transport_.throw_if_failed();
    for (const Call& call : calls_) {
      call.compare();
    }
    calls_.clear();
  }

 private:
  template <class F>
  void in_flight(const F& enqueue) {
    for (int round = 0; round < options_.calls_in_flight; ++round) {
      enqueue(round);
    }
    finish();
  }

  void all_to_all(size_t size, int round) {
    const size_t stride = size + 3;
    Call& call = begin(places() * stride, places() * stride);
    for (int d = 0; d < ranks(); ++d) {
      const Origin mine = {Verb::kAllToAll, size, round, rank(), d};
      const auto place = static_cast<size_t>(d);
      call.send_lengths[place] = length_of(mine);
      fill(call.send.host().subspan(place * stride, call.send_lengths[place]), mine);
    }
    upload(call);
    transport_.all_to_all({call.send.there(), stride, call.send_lengths},
                          {call.receive.there(), stride, call.receive_lengths},
                          tag(Verb::kAllToAll, round), context_);
    download(call, [this, &call, size, round, stride] {
      for (int r = 0; r < ranks(); ++r) {
        expect_part(call, static_cast<size_t>(r), stride,
                    {Verb::kAllToAll, size, round, r, rank()});
      }
    });
  }

  void reduce_scatter(size_t size, int round) {
    const size_t count = count_of(size), begin_at = shard_begin(count, ranks(), rank());
    const size_t length = shard_begin(count, ranks(), rank() + 1) - begin_at;
    const Origin mine = {Verb::kReduceScatter, size, round, rank()};
    Call& call = begin(count * sizeof(float), length * sizeof(float));
    fill_values(call.send.host_values(), mine);
    upload(call);
    transport_.reduce_scatter(call.send.values(), call.receive.values(),
                              tag(Verb::kReduceScatter, round), context_);
    download(call, [this, &call, mine, begin_at] {
      expect_sums(call.receive.host_values(), begin_at, mine);
    });
  }

  void all_reduce_sum(size_t size, int round) {
    const Origin mine = {Verb::kAllReduceSum, size, round, rank()};
    Call& call = begin(0, count_of(size) * sizeof(float));
    fill_values(call.receive.host_values(), mine);
    upload(call);
    transport_.all_reduce_sum(call.receive.values(), tag(Verb::kAllReduceSum, round), context_);
    download(call,
             [this, &call, mine] { expect_sums(call.receive.host_values(), 0, mine); });
  }

  void broadcast(size_t size, int root) {
    const Origin origin = {Verb::kBroadcast, size, root, root};
    Call& call = begin(0, size);
    if (rank() == root) {
      fill(call.receive.host(), origin);
    }
    upload(call);
    transport_.broadcast(call.receive.there(), root, tag(Verb::kBroadcast, root), context_);
    download(call, [this, &call, origin] { expect_bytes(call.receive.host(), origin); });
  }

  /// Rank `late` enters well after it has heard from all others, and they must have waited so long.
  void barrier(int late) {
    const auto start = std::chrono::steady_clock::now();
    all_reduce_sum(1, 0);
    finish();
    if (rank() == late) {
      std::this_thread::sleep_for(kLateToTheBarrier);
    }
    transport_.barrier(tag(Verb::kBarrier, 0), context_);
    finish();
    const auto waited = std::chrono::steady_clock::now() - start;
    const Origin origin = {Verb::kBarrier, 0, 0, late};
    require(waited >= kLateToTheBarrier, origin, "it was left before rank ", in_world(late),
            " had entered it");
  }

  // ---- what should have arrived

  void expect_part(Call& call, size_t place, size_t stride, const Origin& origin) const {
    const size_t own = length_of(origin), length = call.receive_lengths[place];
    const size_t expected = transport_.traits().true_lengths ? own : stride;
    require(length == expected, origin, "rank ", in_world(origin.source), " sent ", length,
            " bytes, expected ", expected);
    expect_bytes(call.receive.host().subspan(place * stride, own), origin);
  }

  void expect_bytes(std::span<const std::byte> bytes, const Origin& origin) const {
    std::vector<std::byte> expected(bytes.size());
    fill(expected, origin);
    const auto at = static_cast<size_t>(
        std::mismatch(bytes.begin(), bytes.end(), expected.begin()).first - bytes.begin());
    if (at < bytes.size()) {
      require(false, origin, "byte ", at, " of rank ", in_world(origin.source), " is ",
              static_cast<int>(bytes[at]), ", expected ", static_cast<int>(expected[at]));
    }
  }

  /// `sums` are elements [begin, begin + size) of the sum over ranks.
  void expect_sums(std::span<const float> sums, size_t begin, Origin origin) const {
    std::vector<float> expected(sums.size());
    for (int r = 0; r < ranks(); ++r) {
      origin.source = r;
      const uint64_t seed = origin.seed();
      for (size_t i = 0; i < sums.size(); ++i) {
        expected[i] += value_of(seed, begin + i);
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      require(sums[i] == expected[i], origin, "element ", begin + i, " (byte ",
              (begin + i) * sizeof(float), ") of the sum over ranks is ", sums[i], ", expected ",
              expected[i]);
    }
  }

  template <class... Parts>
  void require(bool condition, const Origin& origin, const Parts&... parts) const {
    if (!condition) [[unlikely]] {
      throw TransportError(
          concat(where(), ", ", to_string(origin.verb), " of ", origin.size, " bytes, call ",
                 origin.round, ": ", parts...),
          in_world(origin.source));
    }
  }

  // ---- calls

  Call& begin(size_t send_bytes, size_t receive_bytes) {
    return calls_.emplace_back(send_bytes, receive_bytes, places(), context_.stream.device());
  }
  void upload(Call& call) {
    call.send.upload(context_.stream);
    call.receive.upload(context_.stream);
  }
  void download(Call& call, std::function<void()> compare) {
    call.receive.download(context_.stream);
    call.compare = [this, &call, compare = std::move(compare)] {
      compare();
      if (!call.receive.guard_stands()) {
        throw TransportError(
            concat(where(), ": bytes behind the end of a receive buffer were written"));
      }
    };
  }
  static CallTag tag(Verb verb, int round) {
    return {fnv1a(to_string(verb)) + static_cast<uint64_t>(round), "the self-check"};
  }
  void fill_values(std::span<float> values, const Origin& origin) const {
    const uint64_t seed = origin.seed();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = value_of(seed, i);
    }
  }
  /// Shards of about `size` bytes, not all equal.
  size_t count_of(size_t size) const {
    const size_t shard = (size + sizeof(float) - 1) / sizeof(float);
    return shard * places() - (shard > 0 && ranks() > 1 ? 1 : 0);
  }

  std::string where() const {
    return concat("verify: ", transport_.name(), " on rank ", in_world(rank()), group_.name);
  }
  int in_world(int r) const { return group_.first + group_.step * r; }
  int rank() const { return transport_.rank(); }
  int ranks() const { return transport_.world_size(); }
  size_t own() const { return static_cast<size_t>(rank()); }
  size_t places() const { return static_cast<size_t>(ranks()); }

  Transport& transport_;
  const Group group_;
  const VerifyOptions& options_;
  Context& context_;
  std::deque<Call> calls_;
};

/// Around the payload that travels with the header, and around the ends of chunks.
std::vector<size_t> sizes_up_to(size_t largest) {
  constexpr size_t kChunk = chunk_bytes(0);
  std::vector<size_t> sizes = {0,
                               1,
                               63,
                               4096,
                               kInlineBytes - 5,
                               kInlineBytes - 3,
                               kInlineBytes,
                               kInlineBytes + 1,
                               kInlineBytes + kChunk - 3,
                               kInlineBytes + kChunk + 1};
  std::erase_if(sizes, [largest](size_t size) { return size >= largest; });
  sizes.push_back(largest);
  return sizes;
}

/// Ends the group with the first failure of `body`, and waits until no call uses memory of it.
template <class F>
void guarded(Transport& transport, Context& context, const F& body) {
  try {
    body();
  } catch (const std::exception& error) {
    transport.abort(error.what());
    try {
      context.stream.wait();
    } catch (const std::exception&) {
      // A consequence of the first failure, which is the one to report.
    }
    throw;
  }
}

/// Two groups, and calls of theirs between those of all ranks.
void verify_groups(Transport& transport, Verification& world, const VerifyOptions& options,
                   Context& context) {
  const int rank = transport.rank(), color = rank % 2;
  const auto group = transport.split(color);
  const int expected_size = (transport.world_size() + 1 - color) / 2;
  if (group->rank() != rank / 2 || group->world_size() != expected_size) {
    throw TransportError(concat("verify: ", transport.name(), ", split by parity: rank ", rank,
                                " became rank ", group->rank(), " of ", group->world_size(),
                                ", expected ", rank / 2, " of ", expected_size));
  }
  const std::string_view name = color == 0 ? " in the group of even ranks"
                                           : " in the group of odd ranks";
  Verification part(*group, {name, color, 2}, options, context);
  guarded(transport, context, [&] {
    const size_t sizes[] = {0, 1, std::min(options.largest_bytes, kInlineBytes + 1)};
    part.run(sizes);
    for (int round = 0; round < options.calls_in_flight; ++round) {
      world.all_gather(sizes[2], round);
      part.all_gather(sizes[2], round);
    }
    world.finish();
    part.finish();
  });
}

}  // namespace

void verify_transport(Transport& transport, const VerifyOptions& options, Context& context) {
  check(options.calls_in_flight >= 1, "verify: calls_in_flight is ", options.calls_in_flight,
        ", must be at least 1");
  Verification world(transport, {}, options, context);
  guarded(transport, context, [&] {
    world.run(sizes_up_to(options.largest_bytes));
    verify_groups(transport, world, options, context);
    transport.barrier({0, "the end of the self-check"}, context);
    context.stream.wait();
    transport.throw_if_failed();
  });
}

}  // namespace gradwire
