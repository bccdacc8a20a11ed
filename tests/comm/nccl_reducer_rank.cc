// A rank of a job whose reducers work on a GPU over NCCL: every case of device_reducer_case.h must
// give the bits that the CPU's reducers give. bench/nccl_ranks.sh starts it.

#include <cstdlib>
#include <iostream>

#include "tests/comm/device_reducer_case.h"

namespace gradwire::test {
namespace {

std::string examine(const TransportOptions& options) {
  const auto transport = make_transport("nccl", options);
  const auto stream = cuda::make_stream(options.nccl.device_index);
  const std::vector<DeviceCase> cases = device_cases();
  for (const DeviceCase& what : cases) {
    const auto expected = outcomes_on_cpu(options.world_size, what);
    const std::string difference =
        first_difference(outcomes_on_device(*transport, *stream, what),
                         expected[static_cast<size_t>(options.rank)]);
    if (!difference.empty()) {
      throw Error(concat(what.spec, " over ", what.exchange, ": ", difference,
                         " has other bits than on the CPU"));
    }
  }
  return concat("OK, ", cases.size(), " kinds of reducers have the CPU's bits");
}

int run(int count, char** words) {
  TransportOptions options = comm::from_environment();
  options.timeout = std::chrono::seconds(45);
  options.nccl.max_ctas = 2;
  if (count != 3) {
    std::cerr << "usage: nccl_reducer_rank LIBNCCL GPU, with GRADWIRE_RANK, GRADWIRE_WORLD_SIZE and "
                 "GRADWIRE_STORE set\n";
    return 2;
  }
  options.plugin_path = words[1];
  options.nccl.device_index = std::atoi(words[2]);
  const std::string self = concat("reducer: rank ", options.rank, " of ", options.world_size, ": ");
  try {
    std::cout << concat(self, examine(options), "\n");
    return 0;
  } catch (const std::exception& error) {
    std::cerr << concat(self, "FAILED: ", error.what(), "\n");
    return 1;
  }
}

}  // namespace
}  // namespace gradwire::test

int main(int count, char** words) { return gradwire::test::run(count, words); }
