// Every exchange of the registry when something happens to a rank in the middle of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "gradwire/comm/reducer.h"
#include "tests/comm/exchange_case.h"
#include "tests/comm/transport_processes.h"

namespace gradwire::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport_test::Processes;
using Say = std::function<void(const std::string&)>;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr milliseconds kToldWithin{2000};
#else
constexpr milliseconds kToldWithin{200};
#endif

CompressorSpec first_accepted(const ExchangeRow& row) {
  return accepted_specs(row, DType::kFloat32).at(0);
}

/// One matrix, in one bucket.
Plan plan_for(const ExchangeRow& row, size_t rows) {
  PlanOptions options;
  options.spec = first_accepted(row);
  options.exchange = std::string(row.name);
  options.bucket_bytes = size_t{64} << 20;
  const ParamInfo weight{"weight", {rows, 4}};
  return make_plan({&weight, 1}, options);
}

void step(Reducer& reducer, int rank, int number) {
  const std::span<float> gradient = reducer.gradient(0).as<float>();
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>((i * 31 + static_cast<size_t>(7 * rank + number)) % 977) - 488;
  }
  reducer.grad_ready(0);
  reducer.wait();
}

/// Rows that a group without nodes can run; the others are made of these.
std::vector<ExchangeRow> rows() {
  std::vector<ExchangeRow> found;
  for (const ExchangeRow& row : exchange_registry()) {
    if (!row.by_node) {
      found.push_back(row);
    }
  }
  return found;
}

class RowFaults : public transport_test::GlooProcesses {
 protected:
  /// Three ranks that step forever over `row`, say "running", and then their error and when.
  std::unique_ptr<Processes> start(const ExchangeRow& row, const std::string& folder,
                                   milliseconds timeout) const {
    return std::make_unique<Processes>(3, [&, folder, timeout](int rank, const Say& say) {
      TransportOptions options = options_of(rank, 3, timeout);
      options.store = "file:" + folder;
      const auto transport = make_transport("gloo", options);
      Reducer reducer(plan_for(row, 100'000), *transport);
      try {
        for (int number = 0;; ++number) {
          step(reducer, rank, number);
          if (number == 1) {
            say("running");
          }
        }
      } catch (const TransportError& error) {
        say(concat(steady_clock::now().time_since_epoch() / milliseconds(1)));
        say(error.what());
      }
      pause();
    });
  }

  static int64_t now_ms() { return steady_clock::now().time_since_epoch() / milliseconds(1); }
};

TEST_F(RowFaults, AKilledRankIsNamedByAllOthersAtOnce) {
  for (const ExchangeRow& row : rows()) {
    SCOPED_TRACE(row.name);
    const transport_test::TemporaryFolder folder;
    const auto processes = start(row, folder.path(), milliseconds(60000));
    for (int r = 0; r < 3; ++r) {
      ASSERT_EQ(processes->line_of(r), "running");
    }
    const int64_t killed = now_ms();
    processes->send(1, SIGKILL);
    for (const int r : {0, 2}) {
      const std::string at = processes->line_of(r), error = processes->line_of(r);
      EXPECT_NE(error.find("rank 1 died"), std::string::npos) << "rank " << r << ": " << error;
      EXPECT_LE(std::stoll(at) - killed, kToldWithin.count()) << "rank " << r << ": " << error;
    }
  }
}

TEST_F(RowFaults, AStoppedRankIsNamedAtTheDeadline) {
  struct Job {
    transport_test::TemporaryFolder folder;
    std::unique_ptr<Processes> processes;
    int64_t stopped = 0;
  };
  const milliseconds timeout(2000);
  std::vector<std::unique_ptr<Job>> jobs;
  // One after another until each is stopped; then all wait for their deadlines together.
  for (const ExchangeRow& row : rows()) {
    SCOPED_TRACE(row.name);
    auto& job = jobs.emplace_back(std::make_unique<Job>());
    job->processes = start(row, job->folder.path(), timeout);
    for (int r = 0; r < 3; ++r) {
      ASSERT_EQ(job->processes->line_of(r), "running");
    }
    job->stopped = now_ms();
    job->processes->send(1, SIGSTOP);
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(rows()[i].name);
    for (const int r : {0, 2}) {
      const std::string at = jobs[i]->processes->line_of(r);
      const std::string error = jobs[i]->processes->line_of(r);
      EXPECT_NE(error.find("rank 1 stayed silent past the deadline"), std::string::npos)
          << "rank " << r << ": " << error;
      EXPECT_LE(std::stoll(at) - jobs[i]->stopped, (timeout + milliseconds(500)).count())
          << "rank " << r << ": " << error;
    }
  }
}

TEST(RowFaultsOfThreads, RanksThatDisagreeOnShapeOrSpecAllFail) {
  for (const ExchangeRow& row : rows()) {
    const auto specs = accepted_specs(row, DType::kFloat32);
    const auto capacity = [](const CompressorSpec& spec) {
      CompressorShape of_9000;
      of_9000.numel = 9000;
      return make_compressor(spec, of_9000)->capacity_bytes();
    };
    const auto differs = std::find_if(specs.begin(), specs.end(), [&](const CompressorSpec& spec) {
      return capacity(spec) != capacity(specs[0]);
    });
    for (const bool shape : {true, false}) {
      ExchangeCase usual{.exchange = std::string(row.name),
                         .specs = {specs[0]},
                         .numels = {9000},
                         .world_size = 3};
      ExchangeCase other = usual;
      if (shape) {
        other.numels = {18000};
      } else if (differs != specs.end()) {
        other.specs = {*differs};
      } else {
        continue;  // whatever it carries has the same bytes
      }
      SCOPED_TRACE(concat(usual.text(), " against ", other.text()));
      TransportOptions options;
      options.timeout = milliseconds(1500);
      const auto ends = run_ranks(
          3,
          [&](Transport& transport) {
            try {
              exchange_on_rank(transport.rank() == 1 ? other : usual, transport);
              const auto stream = make_inline_stream();
              Workspace workspace;
              Context context{*stream, workspace};
              transport.barrier({1, "the end"}, context);
              stream->wait();
            } catch (const std::exception& error) {
              transport.abort(error.what());
              throw;
            }
          },
          options);
      for (const RankEnd& end : ends) {
        EXPECT_TRUE(end.threw<TransportError>()) << end.message;
        EXPECT_NE(end.message.find("rank "), std::string::npos) << end.message;
        EXPECT_EQ(end.message.find("stayed silent"), std::string::npos)
            << "it is told, not timed out: " << end.message;
      }
    }
  }
}

TEST(RowFaultsOfThreads, TwoHundredStepsWithRandomDelaysKeepTheSameBits) {
  for (const ExchangeRow& row : rows()) {
    SCOPED_TRACE(row.name);
    std::vector<std::vector<float>> means(3);
    const auto ends = run_ranks(3, [&](Transport& transport) {
      Reducer reducer(plan_for(row, 1100), transport);
      std::mt19937 generator(static_cast<unsigned>(transport.rank()) + 3);
      auto& mine = means[static_cast<size_t>(transport.rank())];
      for (int number = 0; number < 200; ++number) {
        std::this_thread::sleep_for(std::chrono::microseconds(generator() % 1000));
        step(reducer, transport.rank(), number);
        const auto mean = reducer.gradient(0).as<float>();
        mine.insert(mine.end(), mean.begin(), mean.begin() + 100);
      }
    });
    EXPECT_EQ(first_message(ends), "");
    EXPECT_EQ(means[1], means[0]);
    EXPECT_EQ(means[2], means[0]);
  }
}

TEST(RowFaultsOfThreads, ARankThatIsLateOnceIsWaitedFor) {
  for (const ExchangeRow& row : rows()) {
    SCOPED_TRACE(row.name);
    TransportOptions options;
    options.timeout = milliseconds(5000);
    const auto ends = run_ranks(
        3,
        [&](Transport& transport) {
          Reducer reducer(plan_for(row, 1100), transport);
          for (int number = 0; number < 3; ++number) {
            std::this_thread::sleep_for(
                milliseconds(transport.rank() == 2 && number == 1 ? 100 : 0));
            step(reducer, transport.rank(), number);
          }
        },
        options);
    EXPECT_EQ(first_message(ends), "");
  }
}

}  // namespace
}  // namespace gradwire::test
