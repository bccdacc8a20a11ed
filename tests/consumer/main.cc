// What a user's program does first: a stream, scratch memory, work, and the error at wait().

#include <cstdio>
#include <numeric>
#include <vector>

#include <gradwire/kernels/core/memory.h>

int main() {
  const auto stream = gradwire::make_cpu_stream({.threads = 2});
  gradwire::Workspace workspace;
  std::vector<float> values(1000, 0.5f);
  float sum = 0;
  stream->enqueue([&] {
    gradwire::Workspace::Frame frame(workspace);
    const auto scratch = frame.take<float>(values.size());
    stream->pool().parallel_for(values.size(), [&](size_t i) { scratch[i] = 2 * values[i]; });
    sum = std::accumulate(scratch.begin(), scratch.end(), 0.0f);
  });
  stream->wait();
  if (sum != 1000.0f) {
    std::fprintf(stderr, "the sum is %g, must be 1000\n", static_cast<double>(sum));
    return 1;
  }
  return 0;
}
