#pragma once
// What the collectives of fake_nccl.cc deliver, computed from what all ranks have brought. Sums are
// made from the last rank to the first: nobody may rely on the order of the ranks.

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "tests/comm/fake_nccl.h"

namespace gradwire::test {

enum class Kind { kAllGather, kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllToAll, kSend, kRecv };

struct Op {
  Kind kind{};
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t count = 0;
  NcclType type = NcclType::kUint8;
  NcclReduction reduction = NcclReduction::kSum;
  int peer = 0;  // or root
};

/// The operations of one group of calls, by rank.
using Brought = std::map<int, const std::vector<Op>*>;

inline size_t width(NcclType type) {
  return type == NcclType::kUint8 ? 1 : type == NcclType::kFloat32 ? 4 : 8;
}

template <class T>
void reduce_into(std::vector<std::byte>& out, const std::vector<const std::byte*>& sources,
                 size_t count, NcclReduction reduction) {
  std::vector<T> result(count);
  for (size_t r = sources.size(); r-- > 0;) {
    for (size_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, sources[r] + i * sizeof(T), sizeof(T));
      const bool first = r + 1 == sources.size();
      result[i] = first ? value
                        : reduction == NcclReduction::kSum ? static_cast<T>(result[i] + value)
                                                           : std::min(result[i], value);
    }
  }
  out.resize(count * sizeof(T));
  std::memcpy(out.data(), result.data(), out.size());
}

inline std::vector<std::byte> reduced(const std::vector<const std::byte*>& sources, const Op& op) {
  std::vector<std::byte> out;
  if (op.type == NcclType::kFloat32) {
    reduce_into<float>(out, sources, op.count, op.reduction);
  } else if (op.type == NcclType::kUint64) {
    reduce_into<uint64_t>(out, sources, op.count, op.reduction);
  } else {
    ++fake_nccl().misuses;
  }
  return out;
}

/// What `rank` writes for its op number i.
inline std::vector<std::byte> result_of(const Brought& brought, int rank, size_t i) {
  const Op& own = (*brought.at(rank))[i];
  const size_t bytes = own.count * width(own.type);
  std::vector<const std::byte*> sources;
  for (const auto& [r, ops] : brought) {
    const size_t shift = own.kind == Kind::kReduceScatter || own.kind == Kind::kAllToAll
                             ? static_cast<size_t>(rank) * bytes
                             : 0;
    sources.push_back(i < ops->size() ? (*ops)[i].from + shift : nullptr);
  }
  std::vector<std::byte> out;
  switch (own.kind) {
    case Kind::kAllGather:
    case Kind::kAllToAll:
      for (const std::byte* const source : sources) {
        out.insert(out.end(), source, source + bytes);
      }
      break;
    case Kind::kBroadcast: {
      const std::byte* const source = sources[static_cast<size_t>(own.peer)];
      out.assign(source, source + bytes);
      break;
    }
    case Kind::kReduce:
      if (own.peer != rank) {
        break;
      }
      [[fallthrough]];
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
      out = reduced(sources, own);
      break;
    case Kind::kRecv:
      for (const Op& theirs : *brought.at(own.peer)) {
        if (theirs.kind == Kind::kSend && theirs.peer == rank) {
          out.assign(theirs.from, theirs.from + bytes);
        }
      }
      break;
    case Kind::kSend:
      break;
  }
  return out;
}

inline bool fit(const Brought& brought) {
  const std::vector<Op>& first = *brought.begin()->second;
  return std::all_of(brought.begin(), brought.end(), [&](const auto& entry) {
    const std::vector<Op>& ops = *entry.second;
    return ops.size() == first.size() &&
           std::equal(ops.begin(), ops.end(), first.begin(), [](const Op& a, const Op& b) {
             return a.kind == b.kind && a.count == b.count && a.type == b.type;
           });
  });
}

}  // namespace gradwire::test
