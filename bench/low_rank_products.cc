// The products of low-rank compression beside the memory and beside OpenBLAS, one thread on every
// side. A group of copies of one matrix, 128 MiB in all, so that no cache holds it: its products
// with R vectors, and orthonormal bases of the vectors. Times are the thread's own, per matrix, the
// best of the passes: other work on the machine can only add to them.
//
//   of_floor  the time the bytes nobody can avoid take at the best rate of memory_rate.h, measured
//             beside each row, over the time taken. Bytes: the matrix and both factors, 4 (n m + R
//             (n + m)); of a basis its vectors read and written, 8 R m, which stay in a cache: a
//             basis is bound by its 4 R^2 m operations, and the share says how far
//   over_blas the time of OpenBLAS over ours, above 1: ours is faster. OpenBLAS multiplies the same
//             matrices by sgemm, once with factors as vectors one after another (as ours) and once
//             with the vectors' elements beside one another, at R = 1 by sgemv and sger as well;
//             the fastest counts. Bases have no peer here
//   difference the largest of what the two differ by, over the largest result: both are right

#include <benchmark/benchmark.h>
#include <cblas.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "bench/memory_rate.h"
#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/lowrank.h"

namespace {

using namespace gradwire;

constexpr size_t kNumel = size_t{1} << 25;  // of all copies, at most
constexpr int kPasses = 5;

struct Size {
  uint32_t rows, cols;
};
constexpr Size kSizes[] = {{1024, 1024}, {4096, 1024}, {512, 4608}};
constexpr uint32_t kRanks[] = {1, 4, 16, 32};

/// Seconds this thread has run.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class F>
double seconds_of(F&& f) {
  const double begin = thread_seconds();
  f();
  return thread_seconds() - begin;
}

/// What all rows share: elements, and as many to write.
struct Data {
  Buffer x{kNumel * 4}, out{kNumel * 4};
  Data() {
    std::mt19937 random(42);
    std::normal_distribution<float> normal(0.0f, 1e-3f);
    constexpr size_t kPeriod = 1000003;  // a prime: copies of a matrix differ
    const std::span<float> to = x.as<float>();
    for (size_t i = 0; i < kNumel; ++i) {
      to[i] = i < kPeriod ? normal(random) : to[i - kPeriod];
    }
    std::ranges::copy(to, out.as<float>().begin());
  }
};

Data& data() {
  static Data instance;
  return instance;
}

double best_rate() {
  float* const out = data().out.as<float>().data();
  const float* const x = data().x.as<float>().data();
  constexpr size_t kHalf = kNumel / 2;
  bench::MemoryTimes best{1e9, 1e9, 1e9};
  for (int i = 0; i < 2; ++i) {
    best.triad = std::min(best.triad, seconds_of([&] { bench::triad(x, x + kHalf, out, kHalf); }));
    best.streaming_triad =
        std::min(best.streaming_triad,
                 seconds_of([&] { bench::streaming_triad(x, x + kHalf, out, kHalf); }));
    best.add = std::min(best.add, seconds_of([&] { bench::add_in_place(x, out, kHalf); }));
  }
  return best.best_rate(kHalf);
}

/// Copies of a matrix, and factors of both sides for each.
struct Group {
  Group(Size of, uint32_t vectors) : size(of), rank(vectors) {
    const size_t numel = size_t{size.rows} * size.cols;
    for (size_t i = 0; i < kNumel / numel; ++i) {
      matrices.push_back({.offset = i * numel,
                          .rows = size.rows,
                          .cols = size.cols,
                          .left = i * rank * size.rows,
                          .right = i * rank * size.cols});
    }
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (auto* factors : {&left, &right}) {
      factors->resize(matrices.size() * rank * (factors == &left ? size.rows : size.cols));
      std::ranges::generate(*factors, [&] { return uniform(random); });
    }
  }
  cpu::LowRankInput input() const {
    return {view_of(std::span<const float>(data().x.as<float>())), {}, matrices, rank};
  }

  const Size size;
  const uint32_t rank;
  std::vector<LowRankMatrix> matrices;
  std::vector<float> left, right;
};

/// One of the products: `ours` and the ways OpenBLAS does it write to the two outputs given.
struct Product {
  const char* name;
  double (*bytes)(const Group&);
  size_t (*results)(const Group&);
  void (*ours)(const Group&, Workspace&, ThreadPool&, float* out);
  /// Of one matrix, `way` 0, 1 or, where R is 1, 2. Way 1 takes and gives factors transposed.
  void (*blas)(const Group&, const LowRankMatrix&, int way, const float* x, float* out);
};

constexpr CBLAS_ORDER kRowMajor = CblasRowMajor;
constexpr CBLAS_TRANSPOSE kN = CblasNoTrans, kT = CblasTrans;

/// C (a x b) = A B, over `inner`; strides as the arrays lie.
void sgemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, uint32_t a, uint32_t b, uint32_t inner,
           const float* A, uint32_t lda, const float* B, uint32_t ldb, float* C) {
  cblas_sgemm(kRowMajor, ta, tb, static_cast<int>(a), static_cast<int>(b), static_cast<int>(inner),
              1.0f, A, static_cast<int>(lda), B, static_cast<int>(ldb), 0.0f, C,
              static_cast<int>(b));
}

double product_bytes(const Group& g) {
  const size_t n = g.size.rows, m = g.size.cols;
  return 4.0 * static_cast<double>(n * m + g.rank * (n + m));
}

void blas_right(const Group& g, const LowRankMatrix& at, int way, const float* x, float* out) {
  const auto [n, m] = g.size;
  const float* const q = g.right.data() + at.right;
  float* const p = out + at.left;
  if (way == 0) {
    sgemm(kN, kT, g.rank, n, m, q, m, x, m, p);
  } else if (way == 1) {
    sgemm(kN, kN, n, g.rank, m, x, m, q, g.rank, p);
  } else {
    cblas_sgemv(kRowMajor, kN, static_cast<int>(n), static_cast<int>(m), 1.0f, x,
                static_cast<int>(m), q, 1, 0.0f, p, 1);
  }
}

void blas_left(const Group& g, const LowRankMatrix& at, int way, const float* x, float* out) {
  const auto [n, m] = g.size;
  const float* const p = g.left.data() + at.left;
  float* const q = out + at.right;
  if (way == 0) {
    sgemm(kN, kN, g.rank, m, n, p, n, x, m, q);
  } else if (way == 1) {
    sgemm(kT, kN, m, g.rank, n, x, m, p, g.rank, q);
  } else {
    cblas_sgemv(kRowMajor, kT, static_cast<int>(n), static_cast<int>(m), 1.0f, x,
                static_cast<int>(m), p, 1, 0.0f, q, 1);
  }
}

void blas_expand(const Group& g, const LowRankMatrix& at, int way, const float*, float* out) {
  const auto [n, m] = g.size;
  const float* const p = g.left.data() + at.left;
  const float* const q = g.right.data() + at.right;
  float* const to = out + at.offset;
  if (way == 0) {
    sgemm(kT, kN, n, m, g.rank, p, n, q, m, to);
  } else if (way == 1) {
    sgemm(kN, kT, n, m, g.rank, p, g.rank, q, g.rank, to);
  } else {
    std::fill_n(to, size_t{n} * m, 0.0f);
    cblas_sger(kRowMajor, static_cast<int>(n), static_cast<int>(m), 1.0f, p, 1, q, 1, to,
               static_cast<int>(m));
  }
}

const Product kProducts[] = {
    {"M_Q", product_bytes, [](const Group& g) { return g.left.size(); },
     [](const Group& g, Workspace&, ThreadPool& pool, float* out) {
       cpu::multiply_right(g.input(), g.right.data(), out, {}, pool);
     },
     blas_right},
    {"Mt_P", product_bytes, [](const Group& g) { return g.right.size(); },
     [](const Group& g, Workspace& workspace, ThreadPool& pool, float* out) {
       cpu::multiply_left(g.input(), g.left.data(), out, workspace, pool);
     },
     blas_left},
    {"P_Qt", product_bytes,
     [](const Group& g) { return g.matrices.size() * g.size.rows * g.size.cols; },
     [](const Group& g, Workspace&, ThreadPool& pool, float* out) {
       cpu::write_product(g.matrices, g.rank, {g.left.data(), g.right.data()},
                          {view_of(std::span(out, kNumel)), 0}, pool);
     },
     blas_expand},
    {"basis", [](const Group& g) { return 8.0 * g.rank * g.size.cols; },
     [](const Group& g) { return g.right.size(); },
     [](const Group& g, Workspace&, ThreadPool& pool, float* out) {
       std::ranges::copy(g.right, out);
       cpu::orthonormalise(g.matrices, g.rank, FactorSide::kRight, out, pool);
     },
     nullptr},
};

/// The largest difference of the two, over the largest of either.
double difference(std::span<const float> a, std::span<const float> b) {
  double largest = 0, apart = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max({largest, std::abs(double{a[i]}), std::abs(double{b[i]})});
    apart = std::max(apart, std::abs(double{a[i]} - b[i]));
  }
  return apart / largest;
}

void run(benchmark::State& state, const Product& product, Size size, uint32_t rank, cpu::Isa isa) {
  const cpu::IsaLimit limit(isa);
  const Group group(size, rank);
  const size_t count = product.results(group);
  std::vector<float> ours(std::max(count, kNumel)), theirs(product.blas ? count : 0);
  Workspace workspace;
  ThreadPool pool(1);
  const int ways = product.blas == nullptr ? 0 : rank == 1 ? 3 : 2;
  double our_s = 1e9, blas_s = 1e9;
  const auto once = [&] { product.ours(group, workspace, pool, ours.data()); };
  once();
  const auto copies = static_cast<double>(group.matrices.size());
  for (auto _ : state) {
    for (int pass = 0; pass < kPasses; ++pass) {
      our_s = std::min(our_s, seconds_of(once));
      for (int way = ways - 1; way >= 0; --way) {
        blas_s = std::min(blas_s, seconds_of([&] {
                            for (const LowRankMatrix& at : group.matrices) {
                              product.blas(group, at, way, data().x.as<float>().data() + at.offset,
                                           theirs.data());
                            }
                          }));
      }
    }
    state.SetIterationTime(our_s / copies);
  }
  const double floor_s = product.bytes(group) / best_rate();
  state.counters["floor_ms"] = 1e3 * floor_s;
  state.counters["of_floor"] = floor_s * copies / our_s;
  if (ways > 0) {
    state.counters["blas_ms"] = 1e3 * blas_s / copies;
    state.counters["over_blas"] = blas_s / our_s;
    state.counters["difference"] = difference({ours.data(), count}, theirs);
  }
}

const char* name_of(cpu::Isa isa) {
  return isa == cpu::Isa::kAvx512 ? "avx512" : isa == cpu::Isa::kAvx2 ? "avx2" : "plain";
}

}  // namespace

int main(int argc, char** argv) {
  openblas_set_num_threads(1);
  std::cout << "OpenBLAS: " << openblas_get_config() << ", one thread, as ours; its kernels are "
            << openblas_get_corename() << "'s whatever the row says\n";
  std::vector<cpu::Isa> levels = {cpu::best_isa()};
  if (levels[0] == cpu::Isa::kAvx512) {
    levels.push_back(cpu::Isa::kAvx2);
  }
  for (const cpu::Isa isa : levels) {
    for (const Product& product : kProducts) {
      for (const Size size : kSizes) {
        for (const uint32_t rank : kRanks) {
          const std::string name = std::string(product.name) + "/" + std::to_string(size.rows) +
                                   "x" + std::to_string(size.cols) + "/R:" + std::to_string(rank) +
                                   "/" + name_of(isa);
          benchmark::RegisterBenchmark(
              name.c_str(),
              [&product, size, rank, isa](auto& state) { run(state, product, size, rank, isa); })
              ->UseManualTime()
              ->Iterations(1)
              ->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
