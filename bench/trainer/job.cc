#include "bench/trainer/job.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "bench/trainer/network.h"
#include "bench/trainer/train.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

// The kind of the exception being handled, for "error" events.
std::string_view current_kind() {
  try {
    throw;
  } catch (const Interrupted&) {
    return "interrupted";
  } catch (const gradwire::NonFiniteGradient&) {
    return "non_finite_gradient";
  } catch (const gradwire::InvalidArgument&) {
    return "invalid_argument";
  } catch (const gradwire::TransportError&) {
    return "transport";
  } catch (const gradwire::DeviceError&) {
    return "device";
  } catch (const gradwire::Error&) {
    return "parameters_differ";
  } catch (const std::system_error&) {
    return "system";
  } catch (...) {
    return "internal";
  }
}

void report(EventWriter& events, int rank, std::string_view kind, std::string_view message) {
  std::fputs(gradwire::concat("gradwire-trainer: rank ", rank, ": ", message, "\n").c_str(),
             stderr);
  try {
    events.write(JsonLine("error").add("rank", rank).add("kind", kind).add("message", message));
  } catch (const std::system_error& error) {
    std::fputs(gradwire::concat("gradwire-trainer: rank ", rank, ": ", error.what(), "\n").c_str(),
               stderr);
  }
}

class Job {
 public:
  Job(const Options& options, EventWriter& events)
      : options_(options), events_(events), signals_([this](std::string_view reason) {
          report(events_, options_.group.rank, "interrupted", reason);
        }) {}

  int run() {
    set_math_threads(options_.threads);
    const bool ok = options_.transport == "in_process" ? run_threads() : run_process();
    return signals_.signal() != 0 ? 128 + signals_.signal() : ok ? kExitOk : kExitRunError;
  }

 private:
  // Runs `body` and reports what it throws as rank `rank`'s.
  template <class Body>
  bool attempt(int rank, const Body& body) {
    try {
      body();
      return true;
    } catch (const std::exception& error) {
      // After a signal every wait fails; the signal is the reason.
      const bool stopped = signals_.signal() != 0;
      report(events_, rank, stopped ? "interrupted" : current_kind(),
             stopped ? signals_.reason() : error.what());
      return false;
    }
  }

  bool train_rank(gradwire::Transport& transport, const DataFolder* data) {
    signals_.attach(transport);
    const bool ok = attempt(transport.rank(), [&] {
      if (data != nullptr) {
        train({options_, *data, transport, events_, signals_});
        return;
      }
      try {
        const DataFolder own = load_folder(options_.data);
        train({options_, own, transport, events_, signals_});
      } catch (const std::exception& error) {
        transport.abort(error.what());
        throw;
      }
    });
    signals_.detach(transport);
    return ok;
  }

  bool run_threads() {
    DataFolder data;
    std::vector<std::unique_ptr<gradwire::Transport>> group;
    if (!attempt(0, [&] {
          data = load_folder(options_.data);
          group = gradwire::make_in_process_group(options_.group.world_size, options_.group);
        })) {
      return false;
    }
    std::vector<char> ok(group.size(), 0);
    std::vector<std::thread> ranks;
    for (size_t r = 0; r < group.size(); ++r) {
      ranks.emplace_back([&, r] { ok[r] = train_rank(*group[r], &data); });
    }
    for (std::thread& rank : ranks) {
      rank.join();
    }
    return std::all_of(ok.begin(), ok.end(), [](char one) { return one != 0; });
  }

  // Joins before reading the data: a rank that cannot read it can then tell the others.
  bool run_process() {
    std::unique_ptr<gradwire::Transport> transport;
    return attempt(
               options_.group.rank,
               [&] { transport = gradwire::make_transport(options_.transport, options_.group); }) &&
           train_rank(*transport, nullptr);
  }

  const Options& options_;
  EventWriter& events_;
  SignalWatch signals_;
};

}  // namespace

int run_job(const Options& options) {
  try {
    if (options.die_with_parent > 0) {
      die_with_parent(options.die_with_parent);
    }
    EventWriter events(options.events);
    return Job(options, events).run();
  } catch (const std::exception& error) {
    std::fputs(
        gradwire::concat("gradwire-trainer: rank ", options.group.rank, ": ", error.what(), "\n")
            .c_str(),
        stderr);
    return kExitRunError;
  }
}

}  // namespace trainer
