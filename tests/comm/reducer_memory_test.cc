// Where a Reducer keeps gradients: groups begin on multiples of 64 bytes there, which neither
// messages nor checkpoints show.

#include <gtest/gtest.h>

#include <sstream>

#include "gradwire/comm/fingerprint.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

/// One bucket: 244 elements of 1-D parameters, then the others.
Plan plan_with(const std::string& spec, DType dtype = DType::kFloat32) {
  PlanOptions options;
  options.spec = parse_spec(spec);
  options.seed = 3;
  options.dtype = dtype;
  return make_plan(model(), options);
}

/// The same on every machine and with every standard library.
Values plain_gradients(int rank, int step) {
  Values values;
  unsigned state = static_cast<unsigned>(1000 * rank + step + 1);
  for (const ParamInfo& parameter : model()) {
    auto& of_parameter = values.emplace_back(parameter.numel());
    for (float& x : of_parameter) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<float>(static_cast<int>(state >> 16) - 32768) / 4096.0f;
    }
  }
  return values;
}

constexpr uint64_t kFingerprint = 6681622811418901088u,
                   kCheckpoints[] = {13312198205303465276u, 333696498458373919u};

std::string saved(const Reducer& reducer) {
  std::ostringstream out;
  reducer.save(out);
  return out.str();
}

TEST(ReducerMemory, BeginsEveryGroupOnAMultipleOf64Bytes) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const char* spec : {"int8", "topk:5%,start=2"}) {
      SCOPED_TRACE(concat(spec, " of ", to_string(dtype)));
      const auto ends = run_ranks(1, [&](Transport& transport) {
        Reducer reducer(plan_with(spec, dtype), transport);
        const PlanBucket& bucket = reducer.plan().buckets[0];
        check(bucket.groups.size() == 2 && bucket.groups[1].offset == 244, "another plan");
        for (const PlanGroup& group : bucket.groups) {
          const std::byte* end = nullptr;
          for (const Segment& segment : group.segments) {
            const Gradient gradient = reducer.gradient(segment.parameter);
            const auto* const begin = static_cast<const std::byte*>(gradient.data);
            check(end != nullptr || reinterpret_cast<uintptr_t>(begin) % 64 == 0, "a group begins ",
                  reinterpret_cast<uintptr_t>(begin) % 64, " bytes behind one");
            check(end == nullptr || begin == end, "parameters of a group lie apart");
            end = begin + gradient.size_bytes();
          }
        }
      });
      EXPECT_EQ(first_message(ends), "");
    }
  }
}

// While all is sent as it is, groups add up where they lie, and travel as one message of 18 956
// floats.
TEST(ReducerMemory, HasNoGapsInMessages) {
  Values own[2], given[2];
  uint64_t sent[2] = {};
  const auto ends = run_ranks(2, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan_with("topk:5%,start=2"), transport);
    const Plan& plan = reducer.plan();
    hand_over(reducer, plain_gradients(rank, 0));
    reducer.wait();
    own[rank] = means(reducer);
    check(reducer.residual(0).empty() || reducer.residual(0)[0] == 0.0f, "something was kept");
    sent[rank] = reducer.trace().last().bytes_sent();
    check(sent[rank] == reducer.trace().last().buckets[0].predicted_bytes_sent, "other bytes");
    std::vector<float> bucket(plan.buckets[0].numel);
    const Values mine = plain_gradients(rank, 0);
    for (ParamId p = 0; p < mine.size(); ++p) {
      std::ranges::copy(mine[p], bucket.begin() + static_cast<ptrdiff_t>(plan.places[p].offset));
    }
    reducer.bucket_ready(0, {bucket.data(), bucket.size(), DType::kFloat32, {}});
    reducer.wait();
    check(reducer.trace().last().bytes_sent() == sent[rank], "more bytes from own memory");
    for (ParamId p = 0; p < mine.size(); ++p) {
      const auto from = bucket.begin() + static_cast<ptrdiff_t>(plan.places[p].offset);
      given[rank].emplace_back(from, from + static_cast<ptrdiff_t>(mine[p].size()));
    }
  });
  EXPECT_EQ(first_message(ends), "");
  const Values first = plain_gradients(0, 0), second = plain_gradients(1, 0);
  for (size_t p = 0; p < first.size(); ++p) {
    for (size_t i = 0; i < first[p].size(); ++i) {
      ASSERT_EQ(own[0][p][i], (first[p][i] + second[p][i]) * 0.5f) << "parameter " << p;
    }
  }
  EXPECT_TRUE(same_bits(own[0], own[1]) && same_bits(own[0], given[0]) &&
              same_bits(own[0], given[1]));
}

// The numbers are those of the version in which groups of a bucket lay one behind the other.
TEST(ReducerMemory, LeavesPlansAndCheckpointsAsTheyWere) {
  const Plan plan = plan_with("threshold:5%");
  EXPECT_EQ(plan.fingerprint(), kFingerprint);
  const auto ends = run_ranks(2, [&](Transport& transport) {
    const int rank = transport.rank();
    Reducer reducer(plan, transport);
    for (int step = 0; step < 3; ++step) {
      hand_over(reducer, plain_gradients(rank, step));
      reducer.wait();
    }
    const std::string file = saved(reducer);
    check(fnv1a(file) == kCheckpoints[rank], "checkpoint of ", file.size(), " bytes, hash ",
          fnv1a(file), ", expected ", kCheckpoints[rank]);
    Reducer another(plan, transport);
    another.load([&](int r) -> std::unique_ptr<std::istream> {
      return r == rank ? std::make_unique<std::istringstream>(file) : nullptr;
    });
    check(saved(another) == file, "another checkpoint");
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
