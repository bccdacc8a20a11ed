#include "tests/simt/block.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <sstream>

namespace gradwire::simt {
namespace {

constexpr uint64_t kMostIdleRounds = 200000;  // of spinning before it counts as a deadlock

// Names are literals, most often the same one.
bool same_name(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

std::unique_ptr<std::byte[]> filled(size_t bytes) {
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::memset(memory.get(), 0xCD, bytes);
  return memory;
}

}  // namespace

void Block::main_of_thread() {
  try {
    body_();
  } catch (...) {
    failure_ = std::current_exception();
  }
  running_->state = State::kDone;
  ++done_;
}

void Block::resume(Thread& thread) {
  running_ = &thread;
  order_.enter(thread.index / kWarp);
  thread.fiber.resume();
  order_.leave();
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void Block::run(Index3 index, uint32_t seed) {
  index_ = index;
  done_ = at_barrier_ = 0;
  voted_ = 0;
  shared_.clear();
  shared_bytes_ = what_.dynamic_shared_bytes;
  dynamic_ = filled(what_.dynamic_shared_bytes);
  for (Thread& thread : threads_) {
    thread.state = State::kReady;
    thread.fiber.start([this] { main_of_thread(); });
  }
  order_.begin((threads_.size() + kWarp - 1) / kWarp);
  std::vector<unsigned> order(threads_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937 random(seed + 7919 * index.x + 104729 * index.y);
  uint64_t idle_rounds = 0;
  while (done_ < threads_.size()) {
    if (seed != 0) {
      std::ranges::shuffle(order, random);
    }
    bool progress = false;
    bool spinning = false;
    for (const unsigned i : order) {
      if (threads_[i].state == State::kReady) {
        idle_ = false;
        resume(threads_[i]);
        (idle_ ? spinning : progress) = true;
      }
    }
    if (at_barrier_ > 0 && at_barrier_ == threads_.size()) {
      open_barrier();
      progress = true;
    }
    idle_rounds = progress ? 0 : idle_rounds + 1;
    if (!progress && (!spinning || idle_rounds > kMostIdleRounds)) {
      throw KernelFault(place() + describe_standstill());
    }
  }
  order_.end();
}

void Block::open_barrier() {
  votes_ = voted_;
  voted_ = 0;
  at_barrier_ = 0;
  for (Thread& thread : threads_) {
    thread.state = State::kReady;
  }
  order_.meet();
}

std::string Block::place() const {
  return std::string(what_.kernel) + ", block (" + std::to_string(index_.x) + ", " +
         std::to_string(index_.y) + ", " + std::to_string(index_.z) + "): ";
}

std::string Block::describe_standstill() const {
  const auto waits = [](const Thread& thread) { return thread.state == State::kAtWarp; };
  const auto stuck = std::ranges::find_if(threads_, waits);
  if (stuck != threads_.end()) {
    uint32_t missing = stuck->mask;
    uint32_t exited = 0;
    for (unsigned l = 0; l < kWarp; ++l) {
      const size_t other = stuck->index / kWarp * kWarp + l;
      if (other >= threads_.size() || threads_[other].state == State::kDone) {
        exited |= 1u << l;
      } else if (threads_[other].state == State::kAtWarp && threads_[other].mask == stuck->mask) {
        missing &= ~(1u << l);
      }
    }
    std::ostringstream out;
    out << "deadlock: thread " << stuck->index << " waits in " << stuck->waits_at << " with mask 0x"
        << std::hex << stuck->mask << " for lanes 0x" << missing << ", of which 0x"
        << (missing & exited) << " have exited";
    return out.str();
  }
  if (at_barrier_ > 0) {
    const auto first = std::ranges::find(threads_, State::kAtBarrier, &Thread::state);
    return "barrier divergence: " + std::to_string(at_barrier_) + " threads wait in " +
           first->waits_at + ", " + std::to_string(done_) + " have exited, " +
           std::to_string(threads_.size() - at_barrier_ - done_) + " do something else";
  }
  return "deadlock: " + std::to_string(threads_.size() - done_) + " threads spin";
}

void Block::fail(const std::string& text) const {
  throw KernelFault(place() + "thread " + std::to_string(running_->index) + ": " + text);
}

unsigned Block::barrier(bool predicate, const char* name) {
  Thread& me = *running_;
  if (at_barrier_ > 0) {
    const auto first = std::ranges::find(threads_, State::kAtBarrier, &Thread::state);
    if (!same_name(first->waits_at, name)) {
      fail(std::string("barrier divergence: is at ") + name + ", thread " +
           std::to_string(first->index) + " waits at " + first->waits_at);
    }
  }
  me.state = State::kAtBarrier;
  me.waits_at = name;
  ++at_barrier_;
  voted_ += predicate ? 1 : 0;
  switch_away();
  return votes_;
}

const uint64_t* Block::exchange(uint32_t mask, uint64_t value, const char* name) {
  Thread& me = *running_;
  const unsigned my_lane = me.index % kWarp;
  Thread* const warp = threads_.data() + me.index / kWarp * kWarp;
  const unsigned lanes = std::min<unsigned>(kWarp, static_cast<unsigned>(threads_.size() -
                                                   (me.index / kWarp * kWarp)));
  if ((mask >> my_lane & 1u) == 0) {
    fail(std::string(name) + ": its own lane is not in the mask");
  }
  if (lanes < kWarp && mask >> lanes != 0) {
    fail(std::string(name) + ": the mask names lanes beyond the block's last thread");
  }
  uint32_t arrived = 1u << my_lane;
  for (unsigned l = 0; l < lanes; ++l) {
    const Thread& other = warp[l];
    if ((mask >> l & 1u) == 0 || l == my_lane) {
      continue;
    }
    if (other.state == State::kDone) {
      fail(std::string(name) + ": the mask names lane " + std::to_string(l) + ", which has exited");
    }
    if (other.state != State::kAtWarp) {
      continue;
    }
    if ((other.mask >> my_lane & 1u) == 0) {
      continue;  // it meets others there, and comes here afterwards
    }
    if (other.mask != mask || !same_name(other.waits_at, name)) {
      std::ostringstream out;
      out << "warp mismatch: is at " << name << " with mask 0x" << std::hex << mask << std::dec
          << ", lane " << l << " waits at " << other.waits_at << " with mask 0x" << std::hex
          << other.mask;
      fail(out.str());
    }
    arrived |= 1u << l;
  }
  me.given = value;
  if (arrived != mask) {
    me.state = State::kAtWarp;
    me.mask = mask;
    me.waits_at = name;
    switch_away();
    return me.taken;
  }
  for (unsigned l = 0; l < lanes; ++l) {
    me.taken[l] = mask >> l & 1u ? warp[l].given : 0;
  }
  for (unsigned l = 0; l < lanes; ++l) {
    if ((mask >> l & 1u) != 0 && l != my_lane) {
      std::memcpy(warp[l].taken, me.taken, sizeof me.taken);
      warp[l].state = State::kReady;
    }
  }
  return me.taken;
}

void* Block::shared_memory(const char* key, size_t bytes) {
  const Untracked untracked;
  for (const SharedObject& object : shared_) {
    if (same_name(object.key, key)) {
      if (object.bytes != bytes) {
        fail(std::string("shared memory ") + key + " has two sizes");
      }
      return object.memory.get();
    }
  }
  shared_bytes_ += bytes;
  if (shared_bytes_ > kMostSharedBytes) {
    fail("shared memory of the block is " + std::to_string(shared_bytes_) + " bytes, at most " +
         std::to_string(kMostSharedBytes) + " exist");
  }
  shared_.push_back({key, bytes, filled(bytes)});
  return shared_.back().memory.get();
}

}  // namespace gradwire::simt
