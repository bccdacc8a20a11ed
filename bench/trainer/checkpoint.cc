#include "bench/trainer/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "bench/trainer/host_verbs.h"
#include "bench/trainer/state_file.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using gradwire::check;
using gradwire::concat;
using gradwire::ParamId;

constexpr std::string_view kPrefix = "step-", kPartial = ".partial";

std::string of_rank(const std::string& folder, uint64_t rank, std::string_view what) {
  return concat(folder, "/rank-", rank, ".", what);
}

// Steps of a complete checkpoint's folder, nothing for other names.
std::optional<uint64_t> steps_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix) || name.size() == kPrefix.size() ||
      name.find_first_not_of("0123456789", kPrefix.size()) != std::string::npos ||
      name.size() > kPrefix.size() + 19) {
    return std::nullopt;
  }
  return std::stoull(name.substr(kPrefix.size()));
}

// Complete checkpoints, the newest last.
std::vector<fs::path> complete(const std::string& folder) {
  std::vector<fs::path> all;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.is_directory() && steps_of(entry.path()).has_value()) {
      all.push_back(entry.path());
    }
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return *steps_of(a) < *steps_of(b); });
  return all;
}

// Has the disk take what a folder or file holds.
void sync(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool good = file >= 0 && fsync(file) == 0;
  const int error = errno;
  if (file >= 0) {
    close(file);
  }
  if (!good) {
    throw std::system_error(error, std::generic_category(), path + ": cannot be written");
  }
}

}  // namespace

uint64_t Position::steps_at(uint64_t per_epoch) const {
  if (per_epoch == steps_per_epoch) {
    return steps;
  }
  const double part = static_cast<double>(steps % steps_per_epoch) /
                      static_cast<double>(steps_per_epoch) * static_cast<double>(per_epoch);
  return steps / steps_per_epoch * per_epoch + static_cast<uint64_t>(part);
}

Checkpoints::Checkpoints(std::string folder, size_t keep, gradwire::Transport& transport,
                         gradwire::Context& context)
    : folder_(std::move(folder)), keep_(keep), transport_(transport), context_(context) {}

std::string Checkpoints::save(const Position& position, Network& model, Updates& updates) {
  const std::string final = concat(folder_, "/", kPrefix, position.steps);
  const std::string partial = concat(final, kPartial);
  const auto rank = static_cast<uint64_t>(transport_.rank());
  if (rank == 0) {
    fs::remove_all(partial);  // of a run that ended while it wrote
    fs::create_directories(folder_);
    check(fs::create_directory(partial), partial,
          ": another has made it, expected one process that writes checkpoints there");
  }
  meet("checkpoint: folder", transport_, context_);
  // [save]
  {
    const std::string path = of_rank(partial, rank, "residuals");
    std::ofstream out(path, std::ios::binary);
    updates.save_residuals(out);
    out.close();
    if (!out) {
      throw std::system_error(errno, std::generic_category(), path + ": cannot be written");
    }
    sync(path);
  }
  StateWriter optimizer(&context_.stream);
  updates.visit_state(optimizer);
  optimizer.write(of_rank(partial, rank, "optimizer"));
  // [save-end]
  if (rank == 0) {
    StateWriter shared;
    shared.number("", "steps", position.steps);
    shared.number("", "steps_per_epoch", position.steps_per_epoch);
    shared.number("", "world_size", position.world_size);
    shared.number("", "seconds", std::bit_cast<uint64_t>(position.seconds));
    shared.number("", "seconds_to_target", std::bit_cast<uint64_t>(position.seconds_to_target));
    updates.save_plan(shared);
    std::span<const float> values = model.values();
    for (const gradwire::ParamInfo& info : model.parameters()) {
      shared.floats(info.name, "value", values.first(info.numel()));
      values = values.subspan(info.numel());
    }
    shared.write(partial + "/parameters");
  }
  meet("checkpoint: files", transport_, context_);
  if (rank == 0) {
    sync(partial);
    fs::remove_all(final);  // the same step again, behind a resumed run
    fs::rename(partial, final);
    sync(folder_);
    remove_older(final);
  }
  meet("checkpoint: its name", transport_, context_);
  return final;
}

void Checkpoints::remove_older(const std::string& latest) const {
  std::vector<fs::path> all = complete(folder_);
  std::erase_if(all, [&](const fs::path& path) { return *steps_of(path) >= *steps_of(latest); });
  for (size_t i = 0; i + keep_ <= all.size(); ++i) {
    fs::remove_all(all[i]);
  }
}

std::string Checkpoints::newest() const {
  const std::vector<fs::path> all = complete(folder_);
  check(!all.empty(), folder_, ": there is no checkpoint, expected a folder with ", kPrefix,
        "<steps> in it");
  return all.back().string();
}

Position Checkpoints::load(Network& model, Updates& updates) {
  const std::string folder = newest();
  StateReader shared(folder + "/parameters");
  Position position;
  position.steps = shared.number("", "steps");
  position.steps_per_epoch = shared.number("", "steps_per_epoch");
  position.world_size = shared.number("", "world_size");
  position.seconds = std::bit_cast<double>(shared.number("", "seconds"));
  position.seconds_to_target = std::bit_cast<double>(shared.number("", "seconds_to_target"));
  check(position.steps_per_epoch > 0 && position.world_size > 0, folder,
        "/parameters: steps_per_epoch is ", position.steps_per_epoch, ", world_size ",
        position.world_size, ", must be at least 1");
  std::vector<std::span<const float>> values;
  for (const gradwire::ParamInfo& info : model.parameters()) {
    values.push_back(shared.floats(info.name, "value", info.numel()));
  }
  updates.load_plan(shared, position.steps);
  // [load]
  const auto rank = static_cast<uint64_t>(transport_.rank()) % position.world_size;
  StateReader optimizer(of_rank(folder, rank, "optimizer"));
  updates.load_state(optimizer);
  for (ParamId p = 0; p < values.size(); ++p) {
    model.set_value(p, values[p]);
  }
  updates.load_residuals([&](int of) -> std::unique_ptr<std::istream> {
    auto in = std::make_unique<std::ifstream>(
        of_rank(folder, static_cast<uint64_t>(of), "residuals"), std::ios::binary);
    return in->is_open() ? std::move(in) : nullptr;
  });
  // [load-end]
  return position;
}

}  // namespace trainer
