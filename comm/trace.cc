#include "gradwire/comm/trace.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "gradwire/comm/internal/json_text.h"

namespace gradwire {
namespace {

// Streams of exchanges follow the last one.
enum Track { kCaller = 0, kCompression = 1, kExchange = 2 };

// Writes the events of one process, separated by commas.
class Events {
 public:
  Events(std::ostream& out, int rank) : out_(out), rank_(rank) {}

  void name(std::string_view kind, int track, std::string_view name) {
    begin() << "{\"ph\":\"M\",\"name\":\"" << kind << "\",\"pid\":" << rank_ << ",\"tid\":" << track
            << ",\"args\":{\"name\":\"" << json_text(name) << "\"}}";
  }

  // `args` is the inside of a JSON object.
  void span(int track, std::string_view name, int64_t begin_us, int64_t end_us,
            std::string_view args) {
    begin() << "{\"ph\":\"X\",\"name\":\"" << json_text(name) << "\",\"pid\":" << rank_
            << ",\"tid\":" << track << ",\"ts\":" << begin_us << ",\"dur\":" << end_us - begin_us
            << ",\"args\":{" << args << "}}";
  }

 private:
  std::ostream& begin() {
    out_ << (first_ ? "\n" : ",\n");
    first_ = false;
    return out_;
  }

  std::ostream& out_;
  int rank_;
  bool first_ = true;
};

void write_bucket(const BucketTrace& bucket, const std::string& step, Events& events) {
  std::ostringstream args;
  args << step << ",\"bytes_sent\":" << bucket.bytes_sent
       << ",\"bytes_received\":" << bucket.bytes_received
       << ",\"predicted_bytes_sent\":" << bucket.predicted_bytes_sent
       << ",\"transfer_us\":" << bucket.transfer_us << ",\"codec_us\":" << bucket.codec_us
       << ",\"hidden_us\":" << bucket.hidden_us << ",\"exposed_us\":" << bucket.exposed_us;
  const std::string name = "bucket " + std::to_string(bucket.bucket);
  events.span(kCompression, name, bucket.begin_us, bucket.compressed_us, step);
  events.span(kExchange + bucket.stream, name, bucket.exchange_us, bucket.end_us, args.str());
}

// As further arguments of an event; none where there were no rounds.
std::string agreement_of(const StepTrace& step) {
  const RoundTrace& rounds = step.agreement;
  return rounds.rounds == 0 ? ""
                            : ",\"rounds\":" + std::to_string(rounds.rounds) +
                                  ",\"round_bytes_sent\":" + std::to_string(rounds.bytes_sent) +
                                  ",\"round_bytes_received\":" +
                                  std::to_string(rounds.bytes_received);
}

int last_stream(const std::vector<StepTrace>& steps) {
  int last = 0;
  for (const StepTrace& step : steps) {
    for (const BucketTrace& bucket : step.buckets) {
      last = std::max(last, bucket.stream);
    }
  }
  return last;
}

template <class Field>
auto sum_over(const std::vector<BucketTrace>& buckets, Field BucketTrace::* field) {
  Field sum = 0;
  for (const BucketTrace& bucket : buckets) {
    sum += bucket.*field;
  }
  return sum;
}

}  // namespace

int64_t StepTrace::codec_us() const { return sum_over(buckets, &BucketTrace::codec_us); }
int64_t StepTrace::transfer_us() const { return sum_over(buckets, &BucketTrace::transfer_us); }
uint64_t StepTrace::bytes_sent() const {
  return sum_over(buckets, &BucketTrace::bytes_sent) + agreement.bytes_sent;
}
uint64_t StepTrace::bytes_received() const {
  return sum_over(buckets, &BucketTrace::bytes_received) + agreement.bytes_received;
}

void Trace::add(const StepTrace& step) {
  if (keep_steps_ == 0) {
    return;
  }
  if (steps_.size() < keep_steps_) {
    steps_.push_back(step);
    return;
  }
  // The oldest one's memory takes the newest: a full trace allocates nothing.
  std::rotate(steps_.begin(), steps_.begin() + 1, steps_.end());
  steps_.back() = step;
}

const StepTrace& Trace::last() const {
  check(!steps_.empty(), "trace: 0 steps kept, expected at least one wait() before last()");
  return steps_.back();
}

std::string Trace::to_chrome_json(int rank) const {
  std::ostringstream out;
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  Events events(out, rank);
  events.name("process_name", kCaller, "rank " + std::to_string(rank));
  events.name("thread_name", kCaller, "caller");
  events.name("thread_name", kCompression, "compression");
  for (int stream = 0; stream <= last_stream(steps_); ++stream) {
    events.name("thread_name", kExchange + stream,
                stream == 0 ? "exchange" : "exchange " + std::to_string(stream));
  }
  for (const StepTrace& step : steps_) {
    const std::string args = "\"step\":" + std::to_string(step.step);
    events.span(kCaller, "backward", step.first_ready_us, step.wait_begin_us, args);
    events.span(kCaller, step.committed ? "wait" : "wait (nothing committed)", step.wait_begin_us,
                step.wait_end_us, args + agreement_of(step));
    for (const BucketTrace& bucket : step.buckets) {
      write_bucket(bucket, args, events);
    }
  }
  out << "\n]}\n";
  return out.str();
}

}  // namespace gradwire
