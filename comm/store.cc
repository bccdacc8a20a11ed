#include "gradwire/comm/store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gradwire/comm/internal/tcp_store.h"

namespace gradwire {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

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
  FileStore(const std::string& folder, Deadline deadline)
      : Store("file:" + folder, deadline), folder_(folder) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (!fs::is_directory(folder_)) {
      throw TransportError(
          concat("store file:", folder, ": cannot be made a folder: ", error.message()));
    }
  }

  void set(std::string_view key, std::span<const char> value) override {
    const fs::path final_path = path_of(key), partial = final_path.string() + ".partial";
    {
      std::ofstream file(partial, std::ios::binary | std::ios::trunc);
      file.write(value.data(), static_cast<std::streamsize>(value.size()));
      file.close();
      if (!file) {
        throw TransportError(concat("store ", address(), ": cannot write ", partial.string(), ": ",
                                    std::strerror(errno)));
      }
    }
    // A hard link fails when the name exists, which a rename would not.
    std::error_code error;
    fs::create_hard_link(partial, final_path, error);
    std::error_code ignored;  // the partial file is a leftover either way
    fs::remove(partial, ignored);
    if (error) {
      throw TransportError(concat("store ", address(), ": '", key, "': ", error.message(),
                                  ": the folder must be empty or new for every group"));
    }
  }

  bool try_get(std::string_view key, std::vector<char>& value) override {
    std::ifstream file(path_of(key), std::ios::binary);
    if (!file) {
      return false;
    }
    value.assign(std::istreambuf_iterator<char>(file), {});
    return true;
  }

  void clear() noexcept override {
    std::error_code ignored;  // what stays behind is reported by the next group's set()
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
      if (entry.path().extension() == ".key") {
        std::error_code also_ignored;
        fs::remove(entry.path(), also_ignored);
      }
    }
  }

 private:
  fs::path path_of(std::string_view key) const {
    std::string name(key);
    std::replace(name.begin(), name.end(), '/', '.');
    return folder_ / (name + ".key");
  }

  fs::path folder_;
};

}  // namespace

std::vector<char> Store::get(std::string_view key) {
  std::vector<char> value;
  Patience patience(deadline_);
  while (!try_get(key, value)) {
    if (!patience.wait()) {
      throw TransportError(concat("store ", address_, ": '", key, "' did not appear in time"));
    }
  }
  return value;
}

std::unique_ptr<Store> make_store(std::string_view address, int rank, milliseconds timeout) {
  constexpr std::string_view kFile = "file:", kTcp = "tcp:";
  if (address.starts_with(kFile) && address.size() > kFile.size()) {
    return std::make_unique<FileStore>(std::string(address.substr(kFile.size())),
                                       std::chrono::steady_clock::now() + timeout);
  }
  if (address.starts_with(kTcp)) {
    return make_tcp_store(address.substr(kTcp.size()), rank, timeout);
  }
  throw InvalidArgument(
      concat("store: address is '", address, "', expected file:DIR or tcp:HOST:PORT"));
}

void meet(Store& store, std::string_view stage, int rank, int world_size) {
  const auto key_of = [&](int r) { return concat(stage, "/", r); };
  store.set(key_of(rank), {});
  std::vector<int> missing;
  std::vector<char> ignored;
  std::string why = "did not appear in time";
  Patience patience(store.deadline());
  for (int r = 0; r < world_size; ++r) {
    missing.push_back(r);
  }
  try {
    do {
      std::erase_if(missing, [&](int r) { return store.try_get(key_of(r), ignored); });
      if (missing.empty()) {
        return;
      }
    } while (patience.wait());
  } catch (const TransportError& error) {
    // Rank 0 may give up, and its store end, a moment before this rank does.
    why = concat("had not appeared when the store ended (", error.what(), ")");
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
