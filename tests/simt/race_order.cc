#include "tests/simt/race_order.h"

#if defined(GRADWIRE_SIMT_RACES)

#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace gradwire::simt {
namespace {

// A switch orders nothing by itself: neither two warps nor a warp and what resumes it.
void switch_to(void* fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }

}  // namespace

Untracked::Untracked() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
Untracked::~Untracked() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

template <class F>
void LaunchOrder::locked(const F& work) {
  const Untracked untracked;
  while (busy_.test_and_set(std::memory_order_acquire)) {
  }
  work();
  busy_.clear(std::memory_order_release);
}

FencePoint* LaunchOrder::make_point() {
  FencePoint* point = nullptr;
  locked([&] { point = points_.emplace_back(std::make_unique<FencePoint>()).get(); });
  return point;
}

void LaunchOrder::publish(const void* address, const std::vector<FencePoint*>& points) {
  if (!points.empty()) {
    locked([&] { published_[address].insert(points.begin(), points.end()); });
    any_.store(true, std::memory_order_release);
  }
}

void LaunchOrder::observe(const void* address, std::set<FencePoint*>& points) {
  if (any_.load(std::memory_order_acquire)) {
    locked([&] {
      const auto found = published_.find(address);
      if (found != published_.end()) {
        points.insert(found->second.begin(), found->second.end());
      }
    });
  }
}

template <class F>
void BlockOrder::in_each_warp(const F& work) {
  for (void* const warp : warps_) {
    switch_to(warp);
    work();
  }
  switch_to(outside_);
}

void BlockOrder::begin(size_t warps) {
  outside_ = __tsan_get_current_fiber();
  for (size_t i = 0; i < warps; ++i) {
    warps_.push_back(__tsan_create_fiber(0));  // what happened before happened before it
  }
}

void BlockOrder::end() {
  in_each_warp([&] { __tsan_release(&ended_); });
  __tsan_acquire(&ended_);
  for (void* const warp : warps_) {
    __tsan_destroy_fiber(warp);
  }
  warps_.clear();
}

void BlockOrder::enter(size_t warp) { switch_to(warps_[warp]); }
void BlockOrder::leave() { switch_to(outside_); }

void BlockOrder::meet() {
  in_each_warp([&] { __tsan_release(&met_); });
  in_each_warp([&] { __tsan_acquire(&met_); });
}

void BlockOrder::acquire() {
  for (FencePoint* const point : seen_) {
    __tsan_acquire(point);
  }
}

void BlockOrder::release() {
  if (open_ == nullptr) {
    const Untracked untracked;
    open_ = launch_.make_point();
    made_.push_back(open_);
  }
  __tsan_release(open_);
}

void BlockOrder::before_atomic(const void* address) {
  launch_.publish(address, made_);
  open_ = nullptr;
}

void BlockOrder::after_atomic(const void* address) { launch_.observe(address, seen_); }

}  // namespace gradwire::simt

#endif
