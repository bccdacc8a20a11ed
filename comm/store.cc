#include "gradwire/comm/store.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gradwire/comm/internal/digest.h"
#include "gradwire/comm/internal/tcp_store.h"
#include "gradwire/comm/internal/within.h"
#include "gradwire/comm/transport.h"
#include "gradwire/kernels/core/internal/new_file.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr std::string_view kPrefixMark = "@";

/// Sleeps between looks, longer each time; false at the deadline.
class Patience {
 public:
  explicit Patience(Deadline deadline) : deadline_(deadline) {}
  bool wait() {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline_) {
      return false;
    }
    std::this_thread::sleep_until(std::min(deadline_, now + pause_));
    pause_ = std::min(pause_ * 2, milliseconds(20));
    return true;
  }

 private:
  Deadline deadline_;
  milliseconds pause_{1};
};

/// One file per key, which appears complete or not at all.
class FileStore final : public Store {
 public:
  FileStore(const std::string& folder, milliseconds timeout, const StoreAccess& access)
      : Store("file:" + folder, timeout), folder_(folder), prefix_(key_prefix(access.secret)) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (!fs::is_directory(folder_)) {
      throw TransportError(
          concat("store file:", folder, ": cannot be made a folder: ", error.message()));
    }
    size_t foreign = 0;
    for (const auto& entry : fs::directory_iterator(folder_, error)) {
      foreign += is_key(entry.path()) && !is_own_key(entry.path()) ? 1 : 0;
    }
    if (foreign > 0 && access.log) {
      access.log(concat("store file:", folder, ": passed over ", foreign,
                        " keys of a job with another secret"));
    }
  }

  void set(std::string_view key, std::span<const char> value) override {
    // A name of this call's own: another that sets the same key may just have linked its file, and
    // to write over that would change the key.
    const fs::path final_path = path_of(key);
    std::error_code error;
    try {
      NewFile file(final_path.string());
      file.write({value.data(), value.size()});
      file.close();
      // A hard link fails when the name exists, which a rename would not.
      fs::create_hard_link(file.name(), final_path, error);
    } catch (const std::system_error& failure) {
      throw TransportError(concat("store ", address(), ": ", failure.what()));
    }
    if (error) {
      throw TransportError(concat("store ", address(), ": '", key, "': ", error.message(),
                                  ": the folder must be empty or new for every group"));
    }
  }

  bool try_get(std::string_view key, std::vector<char>& value) override {
    std::error_code none;
    if (!fs::is_regular_file(path_of(key), none)) {
      return false;
    }
    std::ifstream file(path_of(key), std::ios::binary);
    if (!file) {
      return false;
    }
    value.assign(std::istreambuf_iterator<char>(file), {});
    return true;
  }

  void clear() noexcept override {
    std::error_code ignored;  // what stays behind is reported by the next group's set()
    for (fs::directory_iterator entry(folder_, ignored), end; entry != end;
         entry.increment(ignored)) {
      if (is_own_key(entry->path())) {
        std::error_code also_ignored;
        fs::remove(entry->path(), also_ignored);
      }
    }
  }

 private:
  fs::path path_of(std::string_view key) const {
    std::string name = concat(prefix_, key);
    std::replace(name.begin(), name.end(), '/', '.');
    return folder_ / (name + ".key");
  }
  static bool is_key(const fs::path& path) { return path.extension() == ".key"; }
  bool is_own_key(const fs::path& path) const {
    const std::string name = path.filename().string();
    // Without a secret, keys begin with a stage; with one, with its digest.
    return is_key(path) && (prefix_.empty() ? name.find(kPrefixMark) == std::string::npos
                                            : name.starts_with(prefix_));
  }

  fs::path folder_;
  std::string prefix_;
};

}  // namespace

std::vector<char> Store::get(std::string_view key) {
  std::vector<char> value;
  Patience patience(deadline_);
  while (!try_get(key, value)) {
    if (!patience.wait()) {
      throw TransportError(
          concat("store ", address_, ": '", key, "' did not appear ", within(timeout_)));
    }
  }
  return value;
}

StoreAccess access_of(const TransportOptions& options) {
  using Ranks = StoreAccess::Ranks;
  const int here = options.local_world_size;
  return {options.job_secret, options.log, static_cast<size_t>(options.world_size),
          here <= 0                    ? Ranks::kAnywhere
          : here == options.world_size ? Ranks::kOnOneMachine
                                       : Ranks::kOnSeveral};
}

std::string key_prefix(std::string_view secret) {
  return secret.empty() ? std::string()
                        : to_hex(hmac_sha256(secret, "gradwire store"), 8).append(kPrefixMark);
}

std::unique_ptr<Store> make_store(std::string_view address, int rank, milliseconds timeout,
                                  const StoreAccess& access) {
  constexpr std::string_view kFile = "file:", kTcp = "tcp:";
  if (address.starts_with(kFile) && address.size() > kFile.size()) {
    return std::make_unique<FileStore>(std::string(address.substr(kFile.size())), timeout, access);
  }
  if (address.starts_with(kTcp)) {
    return make_tcp_store(address.substr(kTcp.size()), rank, timeout, access);
  }
  check(!address.empty(),
        "store: no address is given, expected file:DIR or tcp:HOST:PORT, as by GRADWIRE_STORE");
  throw InvalidArgument(
      concat("store: address is '", address, "', expected file:DIR or tcp:HOST:PORT"));
}

std::vector<std::string> meet(Store& store, std::string_view stage, int rank, int world_size,
                              std::string_view mine) {
  const auto key_of = [&](int r) { return concat(stage, "/", r); };
  store.set(key_of(rank), concat(world_size, " ", mine));
  std::vector<std::string> brought(static_cast<size_t>(world_size));
  std::vector<int> missing;
  for (int r = 0; r < world_size; ++r) {
    missing.push_back(r);
  }
  std::string differs;  // two world sizes, and whose
  int other = -1;
  Deadline until{};
  // True when rank r is there.
  const auto look = [&](int r) {
    std::vector<char> value;
    if (!store.try_get(key_of(r), value)) {
      return false;
    }
    const std::string text(value.begin(), value.end());
    const std::string size = text.substr(0, text.find(' '));
    if (differs.empty() && !value.empty() && size != std::to_string(world_size)) {
      differs = concat("store ", store.address(), ": ranks disagree on the world size: rank ", rank,
                       " has ", world_size, ", rank ", r, " has ", size);
      other = r;
      // Where rank 0 serves the store, those who are still on their way shall hear of it too.
      until = std::chrono::steady_clock::now() + milliseconds(rank == 0 ? 1000 : 0);
    }
    brought[static_cast<size_t>(r)] = text.substr(std::min(size.size() + 1, text.size()));
    return true;
  };
  std::string why = concat("did not appear ", within(store.timeout()));
  Patience patience(store.deadline());
  try {
    do {
      std::erase_if(missing, look);
      if (!differs.empty() && (missing.empty() || std::chrono::steady_clock::now() >= until)) {
        break;
      }
      if (missing.empty()) {
        return brought;
      }
    } while (patience.wait());
  } catch (const TransportError& error) {
    // Rank 0 may give up, and its store end, a moment before this rank does.
    why = concat("had not appeared when the store ended (", error.what(), ")");
  }
  if (!differs.empty()) {
    throw TransportError(differs, other);
  }
  std::string list;
  for (const int r : missing) {
    list += concat(list.empty() ? "" : ", ", r);
  }
  throw TransportError(concat("store ", store.address(), ": ", missing.size(), " of ", world_size,
                              " ranks ", why, ": rank ", list),
                       missing[0]);
}

}  // namespace gradwire
