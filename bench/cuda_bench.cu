// The CUDA kernels and their peers, timed on the first GPU against a device copy of this process.
//
//   cuda_bench [--numel N]... [--repeats N] [--only TEXT] [--json FILE]
//
// floor: the time the bytes that nobody can avoid need at the copy's rate. of floor: floor / time,
// 1 is bound by memory alone. Without --numel 25.6 million float32 (ResNet-50) and 110 million
// (BERT). The JSON file is replaced as a whole after every row.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <system_error>

#include "bench/cuda_rows.h"
#include "gradwire/kernels/core/internal/new_file.h"

namespace gradwire::bench {
namespace {

struct Options {
  std::vector<size_t> numels;
  int repeats = 15;
  std::string only, json;
};

[[noreturn]] void misuse(const std::string& text) {
  std::cerr << "cuda_bench: " << text << "\n";
  std::exit(2);
}

size_t number_in(const std::string& name, const std::string& text, size_t least, size_t most) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || text[0] == '-' || value < least || value > most) {
    misuse(concat(name, " is '", text, "', must be ", least, " to ", most));
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name != "--numel" && name != "--repeats" && name != "--only" && name != "--json") {
      misuse(concat("unknown argument '", name, "', known: --numel --repeats --only --json"));
    }
    if (++i == argc) {
      misuse(name + " needs a value");
    }
    const std::string value = argv[i];
    if (name == "--numel") {
      options.numels.push_back(number_in(name, value, 4096, size_t{1} << 31));
    } else if (name == "--repeats") {
      options.repeats = static_cast<int>(number_in(name, value, 1, 10000));
    } else {
      (name == "--only" ? options.only : options.json) = value;
    }
  }
  if (options.numels.empty()) {
    options.numels = {25'600'000, 110'000'000};
  }
  return options;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c < ' ' ? ' ' : c;
  }
  return out + "\"";
}

struct Results {
  std::string gpu;
  std::vector<std::pair<size_t, double>> copies;  // elements, bytes per second
  std::vector<Row> rows;

  double floor_ms(const Row& row) const { return 1e3 * row.bytes / copies.back().second; }

  void write(const std::string& file) const {
    if (file.empty()) {
      return;
    }
    std::ostringstream out;
    out << "{\"gpu\": " << quoted(gpu) << ", \"copy\": [";
    for (const auto& [numel, rate] : copies) {
      out << (&rate == &copies.front().second ? "" : ", ") << "{\"numel\": " << numel
          << ", \"gb_per_s\": " << rate / 1e9 << "}";
    }
    out << "], \"rows\": [";
    for (const Row& row : rows) {
      out << (&row == &rows.front() ? "\n" : ",\n") << "  {\"op\": " << quoted(row.op)
          << ", \"by\": " << quoted(row.by) << ", \"numel\": " << row.numel;
      if (row.absent.empty()) {
        const double rate = rate_at(row.numel);
        out << ", \"ms\": " << row.ms << ", \"bytes\": " << row.bytes
            << ", \"floor_ms\": " << 1e3 * row.bytes / rate
            << ", \"of_floor\": " << 1e3 * row.bytes / rate / row.ms;
        if (row.goal > 0) {
          out << ", \"goal\": " << row.goal;
        }
      } else {
        out << ", \"absent\": " << quoted(row.absent);
      }
      out << "}";
    }
    out << "]}\n";
    try {
      gradwire::NewFile whole(file);
      whole.write(out.str());
      whole.replace(file);
    } catch (const std::system_error& error) {
      misuse(error.what());
    }
  }

 private:
  double rate_at(size_t numel) const {
    for (const auto& [of, rate] : copies) {
      if (of == numel) {
        return rate;
      }
    }
    return std::nan("");
  }
};

void print(const Row& row, double floor_ms) {
  std::printf("%-32s %-22s ", row.op.c_str(), row.by.c_str());
  if (!row.absent.empty()) {
    std::printf("absent: %s\n", row.absent.c_str());
    return;
  }
  const double ratio = floor_ms / row.ms;
  std::printf("%9.3f %9.3f %8.2f", row.ms, floor_ms, ratio);
  if (row.goal > 0) {
    std::printf("   %.2f %s", row.goal, ratio >= row.goal ? "reached" : "missed");
  }
  std::printf("\n");
  std::fflush(stdout);
}

void measure_rows(std::vector<Case> rows, const Arena& arena, const Options& options, Timer& timer,
                  Results& results) {
  for (Case& one : rows) {
    Row& row = one.row;
    if ((row.op + " " + row.by).find(options.only) == std::string::npos) {
      continue;
    }
    row.numel = arena.numel();
    try {
      row.ms = timer.median_ms(one.prepare(row), one.launch);
    } catch (const std::exception& error) {  // one row; a broken device fails the next ones too
      row.absent = error.what();
    }
    results.rows.push_back(row);
    print(row, results.floor_ms(row));
    results.write(options.json);
  }
}

void measure(size_t numel, const Options& options, Stream& stream, Results& results) {
  Timer timer(stream, options.repeats);
  {
    const Arena arena(numel, stream);
    results.copies.emplace_back(numel, copy_rate(arena, stream, timer));
    std::printf("%zu float32, device copy %.0f GB/s\n%-32s %-22s %9s %9s %8s   goal\n", numel,
                results.copies.back().second / 1e9, "operation", "by", "ms", "floor ms",
                "of floor");
    measure_rows(cases(arena, stream), arena, options, timer, results);
  }
  for (const size_t offset : {4, 8, 12}) {
    const Arena arena(numel, stream, offset);
    std::vector<Case> rows = cases(arena, stream);
    std::erase_if(rows, [](const Case& one) { return !is_of_every_alignment(one.row); });
    for (Case& one : rows) {
      one.row.op += concat(", ", offset, " bytes off");
      one.row.goal = 0;
    }
    measure_rows(std::move(rows), arena, options, timer, results);
  }
}

int run(const Options& options) {
  if (cuda::device_count() == 0) {
    std::cout << "cuda_bench: no GPU: " << cuda::unavailable_reason() << "\n";
    return 0;
  }
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  Results results{.gpu = properties.name, .copies = {}, .rows = {}};
  std::printf("%s, %d multiprocessors, %d MiB of L2, median of %d, %d sets of memory in turn\n",
              properties.name, properties.multiProcessorCount, properties.l2CacheSize >> 20,
              options.repeats, kSets);
  const auto stream = cuda::make_stream(0);
  for (const size_t numel : options.numels) {
    measure(numel, options, *stream, results);
  }
  stream->wait();  // a row that broke the device is no absent row
  size_t absent = 0;
  for (const Row& row : results.rows) {
    absent += row.absent.empty() ? 0 : 1;
  }
  std::printf("%zu rows, %zu absent\n", results.rows.size(), absent);
  return 0;
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  const gradwire::bench::Options options = gradwire::bench::parse(argc, argv);
  try {
    return gradwire::bench::run(options);
  } catch (const std::exception& error) {
    std::cerr << "cuda_bench: " << error.what() << "\n";
    return 1;
  }
}
