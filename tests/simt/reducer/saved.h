#pragma once
// Reducers that save and are loaded, on a GPU beside the CPU's.

#include <sstream>

#include "tests/simt/reducer/device_ranks.h"

namespace gradwire::test {

using Files = std::vector<std::string>;  ///< of each rank that saved

inline std::string saved(const Reducer& reducer) {
  std::ostringstream out;
  reducer.save(out);
  return out.str();
}

inline Reducer::OpenCheckpoint opens(const Files& files) {
  return [&files](int rank) -> std::unique_ptr<std::istream> {
    const auto r = static_cast<size_t>(rank);
    return r < files.size() ? std::make_unique<std::istringstream>(files[r]) : nullptr;
  };
}

inline void steps_on_cpu(Reducer& reducer, int rank, int begin, int end, const GradientsOf& of) {
  for (int step = begin; step < end; ++step) {
    hand_over(reducer, of(rank, step));
    reducer.wait();
  }
}

inline void steps_on_gpu(Reducer& reducer, NcclRank self, int begin, int end,
                         const GradientsOf& of) {
  for (int step = begin; step < end; ++step) {
    hand_over_on_device(reducer, of(self.rank, step), self.stream());
    reducer.wait();
  }
}

inline std::unique_ptr<Reducer> reducer_on_gpu(NcclRank self, const DeviceCase& what) {
  ReducerOptions options = what.options;
  options.stream = &self.stream();
  return std::make_unique<Reducer>(what.plan(), *self.transport, options);
}

}  // namespace gradwire::test
