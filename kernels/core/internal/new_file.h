#pragma once
// Files under names that nobody can know before, for what is to be whole before it is found.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "gradwire/kernels/core/error.h"

namespace gradwire {

/// A file that was not there before, in the folder of another: a link or a pipe that waits under
/// its name is not touched. It goes away at the end, unless it has taken that one's place.
/// Everything throws std::system_error that names it.
class NewFile {
 public:
  explicit NewFile(const std::string& beside)
      : name_(name_beside(beside)),
        descriptor_(
            ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) {
      fail("cannot open '");
    }
  }
  ~NewFile() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
    if (!name_.empty()) {
      ::unlink(name_.c_str());
    }
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::string& name() const { return name_; }

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) {
        fail("cannot write to '");
      }
      bytes.remove_prefix(written < 0 ? 0 : static_cast<size_t>(written));
    }
  }

  void close() {
    const int descriptor = std::exchange(descriptor_, -1);
    if (::close(descriptor) != 0) {
      fail("cannot write to '");
    }
  }

  /// Takes the place of that file, on the disk, with the permissions that one had.
  void replace(const std::string& path) {
    struct stat found{};
    if (::lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
        ::fchmod(descriptor_, found.st_mode & 0777) != 0) {
      fail("cannot change the permissions of '");
    }
    if (::fsync(descriptor_) != 0) {
      fail("cannot write to '");
    }
    close();
    if (std::rename(name_.c_str(), path.c_str()) != 0) {
      fail(concat("cannot take the place of '", path, "': '"));
    }
    name_.clear();
  }

 private:
  static std::string name_beside(const std::string& path) {
    constexpr size_t kMost = 200;              // bytes that it begins with: a name has at most 255
    const size_t begin = path.rfind('/') + 1;  // 0 where there is none
    std::random_device random;
    return concat(std::string_view(path).substr(0, begin + kMost), ".", random(), "-", random(),
                  ".partial");
  }

  [[noreturn]] void fail(std::string_view what) const {
    const int error = errno;  // which making the text may change
    throw std::system_error(error, std::generic_category(), concat(what, name_, "'"));
  }

  std::string name_;
  int descriptor_;
};

}  // namespace gradwire
