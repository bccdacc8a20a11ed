// What the trace says about steps, and that grad_ready() stays out of backward's way.

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <new>
#include <thread>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/wrapped_transport.h"

namespace {
thread_local size_t allocations = 0;
std::atomic<size_t> allocations_of_all{0};
}

// Not inlined: the compiler would see malloc paired with delete.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  ++allocations_of_all;
  if (void* memory = std::malloc(bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace gradwire::test {
namespace {

// Reads one JSON value from the front of `text`; false when it is not JSON.
class Json {
 public:
  explicit Json(std::string_view text) : rest_(text) {}
  bool valid() { return value() && (space(), rest_.empty()); }

 private:
  void space() {
    while (!rest_.empty() && contains(" \n\t\r", std::string(1, rest_[0]))) {
      rest_.remove_prefix(1);
    }
  }
  bool take(char c) {
    space();
    if (rest_.empty() || rest_[0] != c) {
      return false;
    }
    rest_.remove_prefix(1);
    return true;
  }
  bool string() {
    if (!take('"')) {
      return false;
    }
    while (!rest_.empty() && rest_[0] != '"') {
      if (static_cast<unsigned char>(rest_[0]) < 0x20) {
        return false;
      }
      rest_.remove_prefix(rest_[0] == '\\' ? 2 : 1);
    }
    return take('"');
  }
  bool list(char close, bool keys) {
    if (take(close)) {
      return true;
    }
    do {
      if (keys && !(string() && take(':'))) {
        return false;
      }
      if (!value()) {
        return false;
      }
    } while (take(','));
    return take(close);
  }
  bool value() {
    space();
    if (take('{')) {
      return list('}', true);
    }
    if (take('[')) {
      return list(']', false);
    }
    if (!rest_.empty() && rest_[0] == '"') {
      return string();
    }
    const size_t end = std::min(rest_.find_first_not_of("-0123456789"), rest_.size());
    rest_.remove_prefix(end);
    return end > 0;
  }
  std::string_view rest_;
};

TEST(ReducerTrace, AddsUpAndItsBytesAreTheTransports) {
  for (const auto& [spec, streams] :
       {std::pair("none", 1), std::pair("int8", 2), std::pair("topk:5%,int4", 4)}) {
    SCOPED_TRACE(spec);
    const auto ends = run_ranks(3, [&, streams = streams, spec = spec](Transport& transport) {
      Reducer reducer(plan_of(spec), transport, {.trace_steps = 3, .streams = streams});
      for (int step = 0; step < 5; ++step) {
        const TrafficCounters before = transport.counters();
        hand_over(reducer, gradients(transport.rank(), step));
        reducer.wait();
        const StepTrace& trace = reducer.trace().last();
        const TrafficCounters after = transport.counters();
        check(trace.step == static_cast<uint64_t>(step) && trace.committed, "step ", trace.step);
        const bool all = streams == 1;  // else the others' groups count their own
        check(trace.bytes_sent() == after.bytes_sent - before.bytes_sent || !all, "bytes sent");
        check(trace.bytes_received() == after.bytes_received - before.bytes_received || !all,
              "received");
        check(trace.buckets.size() == reducer.plan().buckets.size(), "buckets");
        std::vector<int64_t> last_end(static_cast<size_t>(streams), trace.first_ready_us);
        int64_t last_compressed = trace.first_ready_us;
        for (const BucketTrace& bucket : trace.buckets) {
          check(bucket.predicted_bytes_sent == bucket.bytes_sent, "prediction");
          check(bucket.stream == static_cast<int>(bucket.bucket) % streams, "stream");
          int64_t& stream_free = last_end[static_cast<size_t>(bucket.stream)];
          check(trace.first_ready_us <= bucket.ready_us && bucket.ready_us <= bucket.begin_us &&
                    last_compressed <= bucket.begin_us && bucket.begin_us <= bucket.compressed_us &&
                    bucket.compressed_us <= bucket.exchange_us &&
                    stream_free <= bucket.exchange_us && bucket.exchange_us <= bucket.end_us &&
                    bucket.end_us <= trace.wait_end_us,
                "times of bucket ", bucket.bucket, " run backwards");
          const int64_t worked = bucket.compressed_us - bucket.begin_us + bucket.end_us -
                                 bucket.exchange_us;
          check(bucket.hidden_us + bucket.exposed_us == worked && bucket.hidden_us >= 0 &&
                    bucket.exposed_us >= 0,
                "hidden and exposed do not add up");
          check(bucket.transfer_us + bucket.codec_us <= worked,
                "transfer and codec exceed the bucket");
          stream_free = bucket.end_us;
          last_compressed = bucket.compressed_us;
        }
      }
      check(reducer.trace().steps().size() == 3 && reducer.trace().steps()[0].step == 2, "kept");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

// Backward here does not end before all buckets but the last have been exchanged, and the last is
// held back until the caller waits: the first are hidden and the last exposed, however slow the
// machine.
TEST(ReducerTrace, TellsHiddenFromExposedTime) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    std::atomic<int> arrived{0};
    std::atomic<bool> waiting{false}, hold{false};
    WrappedTransport wrapped(transport, [&](Parts) {
      ++arrived;
      while (hold && !waiting) {
        std::this_thread::yield();
      }
      if (hold) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
    Reducer reducer(plan_of("none", 16384, "gather"), wrapped);
    const int digests = arrived;
    const Values mine = gradients(transport.rank(), 0);
    auto order = backward_order();
    order.pop_back();  // the last bucket is parameter 0
    hand_over(reducer, mine, order);
    const int earlier = static_cast<int>(reducer.plan().buckets.size()) - 1;
    while (arrived - digests < earlier) {  // a long backward
      std::this_thread::yield();
    }
    hold = true;
    hand_over(reducer, mine, {0});
    waiting = true;
    reducer.wait();
    const StepTrace& trace = reducer.trace().last();
    const BucketTrace &first = trace.buckets.front(), &last = trace.buckets.back();
    check(first.exposed_us == 0 && first.hidden_us > 0, "first");
    check(last.exposed_us >= last.end_us - std::max(last.exchange_us, trace.wait_begin_us), "last");
    check(last.exposed_us > 0 && trace.exposed_us() >= last.exposed_us, "last was not exposed");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerTrace, ExportsValidChromeJson) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    Reducer reducer(plan_of("int8"), transport);
    for (int step = 0; step < 2; ++step) {
      hand_over(reducer, gradients(transport.rank(), step));
      reducer.wait();
    }
    const std::string json = reducer.trace().to_chrome_json(transport.rank());
    check(Json(json).valid(), json);
    check(contains(json, "\"traceEvents\"") && contains(json, "\"bucket 3\"") &&
              contains(json, concat("\"pid\":", transport.rank())) &&
              contains(json, "\"bytes_sent\":"),
          json);
  });
  EXPECT_EQ(first_message(ends), "");
  EXPECT_TRUE(Json(Trace().to_chrome_json(0)).valid());
  EXPECT_FALSE(Json("{\"a\":[1,]}").valid());
  EXPECT_FALSE(Json("{\"a\":1").valid());
}

TEST(ReducerTrace, OfNoStepHasNoLast) { EXPECT_THROW(Trace().last(), InvalidArgument); }

TEST(ReducerTrace, GradReadyAllocatesNothing) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    Reducer reducer(plan_of("topk:5%,int4"), transport);
    for (int step = 0; step < 3; ++step) {
      const Values mine = gradients(transport.rank(), step);
      for (const ParamId p : forward_order()) {
        write_gradient(reducer, p, mine);
      }
      const auto order = random_order(static_cast<unsigned>(step));
      const size_t before = allocations;
      for (const ParamId p : order) {
        reducer.grad_ready(p);
      }
      check(allocations == before, allocations - before, " allocations");
      reducer.wait();
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

// On all threads of all ranks, once buffers have grown and the trace is full.
TEST(ReducerTrace, AStepAllocatesNothing) {
  for (const int streams : {1, 2}) {
    std::barrier all_ranks(2);
    const auto ends = run_ranks(2, [&](Transport& transport) {
      Reducer reducer(plan_of("topk:5%,int4"), transport, {.trace_steps = 2, .streams = streams});
      const Values mine = gradients(transport.rank(), 0);
      const auto order = backward_order();
      for (int step = 0; step < 12; ++step) {
        all_ranks.arrive_and_wait();
        const size_t before = allocations_of_all;
        all_ranks.arrive_and_wait();
        hand_over(reducer, mine, order);
        reducer.wait();
        all_ranks.arrive_and_wait();
        const size_t made = allocations_of_all - before;
        check(step < 8 || made == 0, made, " allocations in step ", step);
      }
    });
    EXPECT_EQ(first_message(ends), "") << streams;
  }
}

}  // namespace
}  // namespace gradwire::test
