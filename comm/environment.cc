#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include "gradwire/comm/transport.h"

namespace gradwire::comm {
namespace {

struct Variable {
  std::string_view name;
  std::string_view value;
};

/// The variable if it is set and not empty.
std::optional<Variable> find(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::nullopt
                                            : std::optional<Variable>({name, value});
}

/// The first of them that is set and not empty.
std::optional<Variable> first_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto found = find(name)) {
      return found;
    }
  }
  return std::nullopt;
}

int number(const Variable& variable, int low, int high) {
  int value = 0;
  const char* const end = variable.value.data() + variable.value.size();
  const auto [rest, error] = std::from_chars(variable.value.data(), end, value);
  check(error == std::errc() && rest == end && value >= low && value <= high,
        "environment: ", variable.name, " is '", variable.value, "', expected a number from ", low,
        " to ", high);
  return value;
}

/// How a launcher says who a process is.
struct Launcher {
  std::string_view name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;  // null where it takes more than a number: see local_tasks()
};
constexpr int kTorchrun = 0, kOpenMpi = 1, kSlurm = 2;
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr}};
constexpr int kMostRanks = 1 << 20;

bool started_by(int launcher) { return find(kLaunchers[launcher].rank).has_value(); }

/// Whose variables describe this process. Launchers nest: torchrun runs inside a task of the
/// others, mpirun inside an allocation of SLURM, whose variables then describe its daemons.
const Launcher* innermost() {
  const Launcher* found = nullptr;
  for (int which : {kTorchrun, kOpenMpi, kSlurm}) {
    if (!started_by(which) || (which == kSlurm && started_by(kOpenMpi))) {
      continue;
    }
    const Launcher& launcher = kLaunchers[which];
    if (found == nullptr) {
      found = &launcher;
      if (which == kTorchrun && find("TORCHELASTIC_RUN_ID")) {
        return found;
      }
      continue;
    }
    // The same variables without torchrun itself: somebody's script has set them.
    for (const auto part : {&Launcher::rank, &Launcher::world_size}) {
      const auto here = find(found->*part), there = find(launcher.*part);
      check(!here || !there || here->value == there->value, "environment: ", here->name, " is '",
            here->value, "' (as of ", found->name, ") and ", there->name, " is '", there->value,
            "' (", launcher.name,
            "), expected the same: unset those of one, or set GRADWIRE_RANK and "
            "GRADWIRE_WORLD_SIZE");
    }
  }
  return found;
}

/// gradwire's own variable, or else the launcher's.
int required(const char* own, const char* of_launcher, int low, int high) {
  const auto variable = of_launcher == nullptr ? find(own) : first_of({own, of_launcher});
  if (!variable && of_launcher == nullptr) {
    std::string known;
    for (const Launcher& launcher : kLaunchers) {
      known += concat(", or ", launcher.rank, " and ", launcher.world_size, " (", launcher.name,
                      ")");
    }
    throw InvalidArgument(concat("environment: ", own,
                                 " is not set, expected GRADWIRE_RANK and GRADWIRE_WORLD_SIZE",
                                 known));
  }
  check(variable.has_value(), "environment: ", own, " is not set, expected it or ", of_launcher);
  return number(*variable, low, high);
}

/// "2(x3),1": two tasks on each of three nodes, one on the fourth.
int tasks_of_node(const Variable& list, int node) {
  std::string_view rest = list.value;
  const auto take = [&](int low) {
    const size_t end = std::min(rest.find_first_not_of("0123456789"), rest.size());
    const int value = number({list.name, rest.substr(0, end)}, low, kMostRanks);
    rest.remove_prefix(end);
    return value;
  };
  for (int first = 0; !rest.empty();) {
    const int tasks = take(1);
    int nodes = 1;
    if (rest.starts_with("(x")) {
      rest.remove_prefix(2);
      nodes = take(1);
      rest.remove_prefix(rest.starts_with(")") ? 1 : 0);
    }
    first += nodes;
    if (node < first) {
      return tasks;
    }
    rest.remove_prefix(rest.starts_with(",") ? 1 : 0);
  }
  throw InvalidArgument(concat("environment: ", list.name, " is '", list.value, "', node ", node,
                               " (SLURM_NODEID) is not in it"));
}

/// Place among the ranks of this machine, where the variables say it.
void read_local(const Launcher* launcher, TransportOptions& options) {
  auto size = find("GRADWIRE_LOCAL_WORLD_SIZE"), rank = find("GRADWIRE_LOCAL_RANK");
  check(size.has_value() == rank.has_value(),
        "environment: one of GRADWIRE_LOCAL_RANK and GRADWIRE_LOCAL_WORLD_SIZE is not set, "
        "expected both or none");
  if (!rank && launcher != nullptr) {
    rank = find(launcher->local_rank);
    if (launcher->local_world_size != nullptr) {
      size = find(launcher->local_world_size);
    } else if (const auto tasks = first_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})) {
      const auto node = find("SLURM_NODEID");
      options.local_world_size =
          node ? tasks_of_node(*tasks, number(*node, 0, kMostRanks)) : options.local_world_size;
    }
  }
  if (size) {
    options.local_world_size = number(*size, 1, options.world_size);
  }
  if (rank && options.local_world_size > 0) {
    options.local_rank = number(*rank, 0, options.local_world_size - 1);
  } else {
    options.local_world_size = 0;
  }
}

/// "eth,ib" -> "eth*,ib*", "=eth0" -> "eth0", "^docker" -> "^docker*", "^=eth1" -> "^eth1": what
/// NCCL means by them. A port behind a name is for NCCL alone.
std::string wish_of_nccl(std::string_view names) {
  std::string wish;
  if (names.starts_with('^')) {
    wish += '^';
    names.remove_prefix(1);
  }
  const bool exact = names.starts_with('=');
  names.remove_prefix(exact ? 1 : 0);
  for (bool first = true; !names.empty(); first = false) {
    const std::string_view part = names.substr(0, names.find(','));
    wish += concat(first ? "" : ",", part.substr(0, part.find(':')), exact ? "" : "*");
    names.remove_prefix(std::min(part.size() + 1, names.size()));
  }
  return wish;
}

std::string tcp_address(std::string_view host, int port) {
  const bool ipv6 = host.find(':') != std::string_view::npos;
  return concat("tcp:", ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port);
}

/// "node[07-09,12],gpu1" -> "node07".
std::string first_host(std::string_view list) {
  std::string host;
  bool inside = false, skip = false;
  for (const char c : list) {
    if (c == ',' && !inside) {
      break;
    }
    if (c == '[' || c == ']') {
      inside = c == '[';
      skip = false;
    } else {
      skip = skip || (inside && (c == '-' || c == ','));
      if (!skip) {
        host += c;
      }
    }
  }
  return host;
}

/// Where rank 0 of a SLURM step runs, and a port that steps share only by chance.
std::string slurm_store() {
  const auto nodes = first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const auto launch = find("SLURM_LAUNCH_NODE_IPADDR");
  check(nodes || launch,
        "environment: GRADWIRE_STORE is not set, expected it, MASTER_ADDR or SLURM_STEP_NODELIST");
  const auto job = first_of({"SLURM_JOB_ID", "SLURM_JOBID"}), step = find("SLURM_STEP_ID");
  check(job.has_value(),
        "environment: MASTER_PORT is not set, expected it or SLURM_JOB_ID to make a port of");
  constexpr int kMostJobs = 1 << 30;
  const int64_t steps = step ? number(*step, 0, kMostJobs) : 0;
  const int64_t id = number(*job, 0, kMostJobs) + 7919 * steps;
  return tcp_address(nodes ? first_host(nodes->value) : launch->value,
                     static_cast<int>(20000 + id % 10000));
}

std::string store_address(const Launcher* launcher) {
  if (const auto own = find("GRADWIRE_STORE")) {
    return std::string(own->value);
  }
  const auto host = find("MASTER_ADDR"), port = find("MASTER_PORT");
  if (!host && launcher == &kLaunchers[kSlurm]) {
    return slurm_store();
  }
  if (!host && launcher == &kLaunchers[kOpenMpi]) {
    return {};  // the mpi transport needs none, the others say so
  }
  check(host.has_value(), "environment: GRADWIRE_STORE is not set, expected it or MASTER_ADDR");
  check(port.has_value(), "environment: MASTER_PORT is not set, expected it beside MASTER_ADDR");
  // Under torchrun the port itself belongs to PyTorch's own store.
  const int taken = find("TORCHELASTIC_RUN_ID") ? 1 : 0;
  return tcp_address(host->value, number(*port, 1, 65535 - taken) + taken);
}

}  // namespace

std::string socket_interface_from_environment() {
  if (const auto names = first_of({"GRADWIRE_INTERFACE", "GLOO_SOCKET_IFNAME"})) {
    return std::string(names->value);
  }
  const auto nccl = find("NCCL_SOCKET_IFNAME");
  return nccl ? wish_of_nccl(nccl->value) : std::string();
}

TransportOptions from_environment() {
  TransportOptions options;
  const bool own = find("GRADWIRE_RANK") && find("GRADWIRE_WORLD_SIZE");
  const Launcher* const launcher = own ? nullptr : innermost();
  options.world_size = required("GRADWIRE_WORLD_SIZE", launcher ? launcher->world_size : nullptr, 1,
                                kMostRanks);
  options.rank = required("GRADWIRE_RANK", launcher ? launcher->rank : nullptr, 0,
                          options.world_size - 1);
  read_local(launcher, options);
  options.store = store_address(launcher);
  if (const auto interface = find("GRADWIRE_INTERFACE")) {
    options.network_interface = std::string(interface->value);
  }
  options.socket_interface = socket_interface_from_environment();
  if (const auto secret = find("GRADWIRE_JOB_SECRET")) {
    options.job_secret = std::string(secret->value);
  }
  return options;
}

}  // namespace gradwire::comm
