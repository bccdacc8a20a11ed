#pragma once
// What a test draws of specs that take long together; `./run.sh soak` runs all of them.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace gradwire::testing {

/// Of the specs of each compressor at most `of_each`, drawn by GRADWIRE_TEST_SEED, in their order;
/// all of them where GRADWIRE_SOAK is set. Says what it drew by which seed.
inline std::vector<std::string> sample_of_each(std::vector<std::string> specs, size_t of_each = 2) {
  const char* const soak = std::getenv("GRADWIRE_SOAK");
  if (soak != nullptr && *soak != '\0') {
    return specs;
  }
  const char* const given = std::getenv("GRADWIRE_TEST_SEED");
  const uint64_t seed = given == nullptr ? 20240229 : std::strtoull(given, nullptr, 10);
  std::map<std::string, std::vector<size_t>> by_name;
  for (size_t i = 0; i < specs.size(); ++i) {
    by_name[specs[i].substr(0, specs[i].find_first_of(":,"))].push_back(i);
  }
  std::mt19937_64 random(seed);
  std::vector<size_t> drawn;
  for (auto& [name, places] : by_name) {
    std::ranges::shuffle(places, random);
    drawn.insert(drawn.end(), places.begin(),
                 places.begin() + static_cast<ptrdiff_t>(std::min(of_each, places.size())));
  }
  std::ranges::sort(drawn);
  std::vector<std::string> sample;
  for (const size_t i : drawn) {
    sample.push_back(specs[i]);
  }
  std::cout << sample.size() << " of " << specs.size() << " specs, seed " << seed
            << " (GRADWIRE_TEST_SEED); ./run.sh soak runs all\n";
  return sample;
}

}  // namespace gradwire::testing
