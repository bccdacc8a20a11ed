#include "tests/comm/fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/fake_gpu.h"
#include "tests/comm/fake_nccl_results.h"

namespace gradwire {

namespace test {
namespace {

/// One group of calls, as all ranks have brought it.
struct Meeting {
  Brought brought;
  int computed = 0, left = 0;
};

/// Communicators with the same id.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0;
  std::map<uint64_t, Meeting> meetings;
};

}  // namespace
}  // namespace test

struct NcclCommHandle {
  std::shared_ptr<test::Clique> clique;
  int rank = 0;
  int device = 0;
  std::atomic<bool> aborted{false}, finalized{false};
  std::mutex mutex;
  int polls_left = 0;                         // until what was called is on the stream
  std::vector<std::function<void()>> launches;
  uint64_t groups = 0;
};

namespace test {
namespace {

thread_local int group_depth = 0;
struct Pending {
  NcclCommHandle* comm;
  FakeGpuStream* stream;
  Op op;
};
thread_local std::vector<Pending> pending;
thread_local std::string last_error;

bool failed(NcclCommHandle* comm) {
  return fake_nccl().async_error_rank == comm->rank && fake_nccl().async_error != 0;
}

/// The kernel of one group on one rank: spins until all are there, or it is told to give up.
void run_group(NcclCommHandle* comm, uint64_t number, const std::vector<Op>& ops) {
  Clique& clique = *comm->clique;
  std::unique_lock lock(clique.mutex);
  Meeting& meeting = clique.meetings[number];
  const auto wait = [&](const auto& condition) {
    clique.changed.wait(lock, [&] { return comm->aborted || condition(); });
    return !comm->aborted;
  };
  const auto all = static_cast<size_t>(clique.size);
  meeting.brought[comm->rank] = &ops;
  clique.changed.notify_all();
  if (!wait([&] { return meeting.brought.size() == all && fit(meeting.brought); })) {
    meeting.brought.erase(comm->rank);
    return;
  }
  std::vector<std::vector<std::byte>> results;
  for (size_t i = 0; i < ops.size(); ++i) {
    results.push_back(result_of(meeting.brought, comm->rank, i));
  }
  ++meeting.computed;
  clique.changed.notify_all();
  if (!wait([&] { return meeting.computed == clique.size; })) {
    return;
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!results[i].empty()) {
      std::memcpy(ops[i].to, results[i].data(), results[i].size());
    }
  }
  if (++meeting.left == clique.size) {
    clique.meetings.erase(number);
  }
}

NcclResult add(NcclCommHandle* comm, void* stream, Op op) {
  FakeNccl& fake = fake_nccl();
  if (const int wanted = comm->rank == 0 ? fake.call_result.exchange(0) : 0; wanted != 0) {
    last_error = "the test wanted this";
    return static_cast<NcclResult>(wanted);
  }
  if (static_cast<FakeGpuStream*>(stream)->device().index != comm->device) {
    ++fake.misuses;  // joined while another GPU was current
  }
  if (group_depth == 0 || comm->aborted || comm->finalized || stream == nullptr) {
    ++fake.misuses;
    return NcclResult::kInvalidUsage;
  }
  std::lock_guard lock(comm->mutex);
  if (comm->polls_left > 0) {
    ++fake.misuses;
    last_error = "Attempt to use communicator before the previous operation returned ncclSuccess";
    return NcclResult::kInvalidArgument;
  }
  pending.push_back({comm, static_cast<FakeGpuStream*>(stream), op});
  return NcclResult::kInProgress;
}

// ---- the interface

NcclResult get_version(int* version) {
  *version = 22809;
  return NcclResult::kSuccess;
}

std::mutex cliques_mutex;
std::map<uint64_t, std::weak_ptr<Clique>> cliques;

NcclResult get_unique_id(NcclUniqueId* id) {
  static std::atomic<uint64_t> next{1};
  const uint64_t value = next++;
  std::memset(id->internal, 0x5A, sizeof(id->internal));
  std::memcpy(id->internal + 100, &value, sizeof(value));
  return NcclResult::kSuccess;
}

const char* get_error_string(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return "no error";
    case NcclResult::kUnhandledCudaError:
      return "unhandled cuda error";
    case NcclResult::kRemoteError:
      return "remote process exited or there was a network error";
    case NcclResult::kInternalError:
      return "internal error";
    default:
      return "another error";
  }
}
const char* get_last_error(NcclCommHandle*) { return last_error.c_str(); }

NcclResult comm_init_rank_config(NcclCommHandle** comm, int size, NcclUniqueId id, int rank,
                                 NcclConfig* config) {
  FakeNccl& fake = fake_nccl();
  uint64_t key = 0;
  std::memcpy(&key, id.internal + 100, sizeof(key));
  const bool sane = config->magic == 0xcafebeef && config->blocking == 0 && config->size == 72 &&
                    config->version == 22700 && rank >= 0 && rank < size;
  if (!sane) {
    ++fake.misuses;
    return NcclResult::kInvalidArgument;
  }
  if (fake.init_result != 0) {
    last_error = "Cuda failure 35 'no driver'";
    return static_cast<NcclResult>(fake.init_result.load());
  }
  fake.last_max_ctas = config->max_ctas;
  auto handle = std::make_unique<NcclCommHandle>();
  handle->rank = rank;
  handle->device = fake_current_device();
  {
    std::lock_guard lock(cliques_mutex);
    handle->clique = cliques[key].lock();
    if (handle->clique == nullptr) {
      cliques[key] = handle->clique = std::make_shared<Clique>();
    }
  }
  {
    std::lock_guard lock(handle->clique->mutex);
    handle->clique->size = size;
    ++handle->clique->joined;
  }
  ++fake.alive;
  *comm = handle.release();
  return NcclResult::kInProgress;
}

NcclResult comm_get_async_error(NcclCommHandle* comm, NcclResult* state) {
  *state = NcclResult::kSuccess;
  if (failed(comm)) {
    last_error = "socket: connection closed by remote peer";
    *state = static_cast<NcclResult>(fake_nccl().async_error.load());
    return NcclResult::kSuccess;
  }
  {
    std::lock_guard lock(comm->clique->mutex);
    if (comm->clique->joined < comm->clique->size || fake_nccl().never_ready) {
      *state = NcclResult::kInProgress;
      return NcclResult::kSuccess;
    }
  }
  std::lock_guard lock(comm->mutex);
  if (comm->polls_left > 0 && --comm->polls_left > 0) {
    *state = NcclResult::kInProgress;
    return NcclResult::kSuccess;
  }
  for (const auto& launch : comm->launches) {
    launch();
  }
  comm->launches.clear();
  return NcclResult::kSuccess;
}

NcclResult group_start() {
  ++group_depth;
  return NcclResult::kSuccess;
}

NcclResult group_end() {
  if (--group_depth > 0) {
    return NcclResult::kSuccess;
  }
  if (pending.empty()) {
    return NcclResult::kSuccess;
  }
  NcclCommHandle* const comm = pending.front().comm;
  FakeGpuStream* const stream = pending.front().stream;
  auto ops = std::make_shared<std::vector<Op>>();
  for (const Pending& entry : pending) {
    fake_nccl().misuses += entry.comm != comm || entry.stream != stream;
    ops->push_back(entry.op);
  }
  pending.clear();
  std::lock_guard lock(comm->mutex);
  // A graph is replayed: each run of the kernel is a meeting of its own.
  comm->launches.push_back([comm, stream, ops] {
    stream->launch([comm, ops] { run_group(comm, comm->groups++, *ops); });
  });
  comm->polls_left = 4;
  return NcclResult::kInProgress;
}

NcclResult comm_finalize(NcclCommHandle* comm) {
  comm->finalized = true;
  ++fake_nccl().finalized;
  return NcclResult::kInProgress;
}

NcclResult comm_destroy(NcclCommHandle* comm) {
  fake_nccl().misuses += failed(comm) || !comm->finalized;
  ++fake_nccl().destroyed;
  --fake_nccl().alive;
  delete comm;
  return NcclResult::kSuccess;
}

NcclResult comm_abort(NcclCommHandle* comm) {
  {
    std::lock_guard lock(comm->clique->mutex);
    comm->aborted = true;
    comm->clique->changed.notify_all();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(fake_nccl().abort_ms));
  ++fake_nccl().aborted;
  --fake_nccl().alive;
  // Its kernels may be about to look at it.
  static std::mutex mutex;
  static std::vector<std::unique_ptr<NcclCommHandle>> graveyard;
  std::lock_guard lock(mutex);
  graveyard.emplace_back(comm);
  return NcclResult::kSuccess;
}

NcclResult all_gather(const void* from, void* to, size_t count, NcclType type,
                      NcclCommHandle* comm, void* stream) {
  return add(comm, stream, {Kind::kAllGather, static_cast<const std::byte*>(from),
                            static_cast<std::byte*>(to), count, type});
}
NcclResult all_to_all(const void* from, void* to, size_t count, NcclType type,
                      NcclCommHandle* comm, void* stream) {
  return add(comm, stream, {Kind::kAllToAll, static_cast<const std::byte*>(from),
                            static_cast<std::byte*>(to), count, type});
}
NcclResult all_reduce(const void* from, void* to, size_t count, NcclType type,
                      NcclReduction reduction, NcclCommHandle* comm, void* stream) {
  return add(comm, stream, {Kind::kAllReduce, static_cast<const std::byte*>(from),
                            static_cast<std::byte*>(to), count, type, reduction});
}
NcclResult reduce(const void* from, void* to, size_t count, NcclType type, NcclReduction reduction,
                  int root, NcclCommHandle* comm, void* stream) {
  return add(comm, stream, {Kind::kReduce, static_cast<const std::byte*>(from),
                            static_cast<std::byte*>(to), count, type, reduction, root});
}
NcclResult reduce_scatter(const void* from, void* to, size_t count, NcclType type,
                          NcclReduction reduction, NcclCommHandle* comm, void* stream) {
  return add(comm, stream, {Kind::kReduceScatter, static_cast<const std::byte*>(from),
                            static_cast<std::byte*>(to), count, type, reduction});
}
NcclResult broadcast(const void* from, void* to, size_t count, NcclType type, int root,
                     NcclCommHandle* comm, void* stream) {
  return add(comm, stream, {Kind::kBroadcast, static_cast<const std::byte*>(from),
                            static_cast<std::byte*>(to), count, type, NcclReduction::kSum, root});
}
NcclResult send(const void* from, size_t count, NcclType type, int peer, NcclCommHandle* comm,
                void* stream) {
  return add(comm, stream, {Kind::kSend, static_cast<const std::byte*>(from), nullptr, count, type,
                            NcclReduction::kSum, peer});
}
NcclResult recv(void* to, size_t count, NcclType type, int peer, NcclCommHandle* comm,
                void* stream) {
  return add(comm, stream, {Kind::kRecv, nullptr, static_cast<std::byte*>(to), count, type,
                            NcclReduction::kSum, peer});
}

NcclResult comm_register(NcclCommHandle*, void* data, size_t, void** handle) {
  *handle = data;
  ++fake_nccl().registered;
  return NcclResult::kSuccess;
}
NcclResult comm_deregister(NcclCommHandle*, void*) {
  --fake_nccl().registered;
  return NcclResult::kSuccess;
}

}  // namespace

FakeNccl& fake_nccl() {
  static FakeNccl fake;
  return fake;
}

void FakeNccl::reset() {
  finalized = destroyed = aborted = registered = misuses = 0;
  never_ready = false;
  init_result = call_result = async_error = abort_ms = 0;
  async_error_rank = -1;
}

void* fake_nccl_symbol(const char* name) {
  NcclFunctions table{};
  table.get_version = get_version;
  table.get_unique_id = get_unique_id;
  table.get_error_string = get_error_string;
  table.get_last_error = get_last_error;
  table.comm_init_rank_config = comm_init_rank_config;
  table.comm_finalize = comm_finalize;
  table.comm_destroy = comm_destroy;
  table.comm_abort = comm_abort;
  table.comm_get_async_error = comm_get_async_error;
  table.group_start = group_start;
  table.group_end = group_end;
  table.all_gather = all_gather;
  table.all_reduce = all_reduce;
  table.reduce = reduce;
  table.reduce_scatter = reduce_scatter;
  table.broadcast = broadcast;
  table.send = send;
  table.recv = recv;
  table.all_to_all = all_to_all;
  table.comm_register = comm_register;
  table.comm_deregister = comm_deregister;
  void* found = nullptr;
  for_each_nccl_function([&](std::string_view known, auto member, int) {
    if (known == name) {
      found = reinterpret_cast<void*>(table.*member);
    }
  });
  return found;
}

NcclLibrary make_fake_nccl() { return probe_nccl(fake_nccl_symbol, "fake"); }

}  // namespace test
}  // namespace gradwire
