#include "bench/trainer/state_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "bench/trainer/group_checks.h"
#include "bench/trainer/idx.h"
#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

using gradwire::check;
using gradwire::concat;

constexpr std::string_view kMagic = "GWTS";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kFloats = 1, kBytes = 2, kNumber = 3;

size_t width_of(uint32_t kind) { return kind == kFloats ? 4 : kind == kBytes ? 1 : 8; }

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

[[noreturn]] void fail(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), path + ": cannot be written");
}

// Takes pieces of a file from the front.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  bool empty() const { return bytes_.empty(); }

  std::span<const std::byte> take(uint64_t count) {
    check(count <= bytes_.size(), file_, ": a piece has ", count, " bytes, and there are ",
          bytes_.size(), " left: expected a whole file");
    const auto first = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return first;
  }

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string text() {
    const auto characters = take(number<uint32_t>());
    return {reinterpret_cast<const char*>(characters.data()), characters.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view file_;
};

}  // namespace

StateWriter::StateWriter(gradwire::Stream* stream) : stream_(stream) {
  append(std::as_bytes(std::span(kMagic)));
  append(bytes_of(kVersion));
}

void StateWriter::append(std::span<const std::byte> bytes) {
  content_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void StateWriter::append_from(std::span<const std::byte> bytes, gradwire::Device device) {
  if (device.type == gradwire::DeviceType::kCpu) {
    append(bytes);
    return;
  }
  check(stream_ != nullptr && stream_->device() == device, "checkpoint: state is on ",
        gradwire::name_of(device), ", expected a stream of it to copy on");
  std::vector<std::byte> copy(bytes.size());
  gradwire::copy_bytes(copy, {}, bytes, device, *stream_);
  stream_->wait();
  append(copy);
}

void StateWriter::begin(uint32_t kind, std::string_view parameter, std::string_view name,
                        uint64_t count) {
  append(bytes_of(kind));
  for (const std::string_view text : {parameter, name}) {
    append(bytes_of(static_cast<uint32_t>(text.size())));
    append(std::as_bytes(std::span(text)));
  }
  append(bytes_of(count));
}

void StateWriter::floats(std::string_view parameter, std::string_view name,
                         std::span<const float> values) {
  begin(kFloats, parameter, name, values.size());
  append(std::as_bytes(values));
}

void StateWriter::number(std::string_view parameter, std::string_view name, uint64_t value) {
  begin(kNumber, parameter, name, 1);
  append(bytes_of(value));
}

void StateWriter::tensor(std::string_view parameter, std::string_view name,
                         gradwire::TensorView value) {
  begin(kFloats, parameter, name, value.numel);
  append_from(std::as_bytes(value.as<float>()), value.device);
}

void StateWriter::bytes(std::string_view parameter, std::string_view name,
                        std::span<std::byte> value, gradwire::Device device) {
  begin(kBytes, parameter, name, value.size());
  append_from(value, device);
}

void StateWriter::scalar(std::string_view parameter, std::string_view name, uint64_t& value) {
  number(parameter, name, value);
}

void StateWriter::write(const std::string& path) {
  append(bytes_of(fnv1a(std::as_bytes(std::span(content_)))));
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) {
    fail(path);
  }
  std::string_view left = content_;
  bool good = true;
  while (good && !left.empty()) {
    const ssize_t written = ::write(file, left.data(), left.size());
    good = written >= 0 || errno == EINTR;
    left.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  good = good && fsync(file) == 0;
  const int error = errno;
  close(file);
  if (!good) {
    errno = error;
    fail(path);
  }
}

StateReader::StateReader(const std::string& path) : path_(path) {
  const std::vector<uint8_t> content = read_file(path);
  const auto all = std::as_bytes(std::span(content));
  check(all.size() >= 16 && std::memcmp(all.data(), kMagic.data(), kMagic.size()) == 0, path,
        ": it has ", all.size(), " bytes and does not begin with ", kMagic,
        ", expected a file of the trainer's checkpoints");
  Cursor sum(all.last(8), path);
  check(sum.number<uint64_t>() == fnv1a(all.first(all.size() - 8)), path,
        ": the checksum is another one than of its bytes, expected a file as it was written");
  Cursor cursor(all.first(all.size() - 8), path);
  cursor.take(kMagic.size());
  const auto version = cursor.number<uint32_t>();
  check(version == kVersion, path, ": version is ", version, ", expected ", kVersion);
  while (!cursor.empty()) {
    Piece piece;
    piece.kind = cursor.number<uint32_t>();
    check(piece.kind >= kFloats && piece.kind <= kNumber, path, ": kind of a piece is ", piece.kind,
          ", expected 1 to 3");
    std::string parameter = cursor.text(), name = cursor.text();
    const auto count = cursor.number<uint64_t>();
    check(count <= all.size(), path, ": a piece has ", count, " values, more than the file's ",
          all.size(), " bytes");
    const auto values = cursor.take(count * width_of(piece.kind));
    piece.values.assign(values.begin(), values.end());
    pieces_.insert_or_assign({std::move(parameter), std::move(name)}, std::move(piece));
  }
}

std::string StateReader::name_of(std::string_view parameter, std::string_view name) const {
  return concat(path_, ": ", name, " of ", parameter);
}

const StateReader::Piece* StateReader::find(uint32_t kind, std::string_view parameter,
                                            std::string_view name) const {
  const auto piece = pieces_.find({std::string(parameter), std::string(name)});
  return piece == pieces_.end() || piece->second.kind != kind ? nullptr : &piece->second;
}

std::optional<gradwire::ConstTensorView> StateReader::tensor(std::string_view parameter,
                                                             std::string_view name) {
  const Piece* const piece = find(kFloats, parameter, name);
  if (piece == nullptr) {
    return std::nullopt;
  }
  return gradwire::view_of(std::span(reinterpret_cast<const float*>(piece->values.data()),
                                     piece->values.size() / sizeof(float)));
}

std::optional<std::span<const std::byte>> StateReader::bytes(std::string_view parameter,
                                                             std::string_view name) {
  const Piece* const piece = find(kBytes, parameter, name);
  return piece == nullptr ? std::nullopt : std::optional(std::span(piece->values));
}

std::optional<uint64_t> StateReader::scalar(std::string_view parameter, std::string_view name) {
  const Piece* const piece = find(kNumber, parameter, name);
  if (piece == nullptr || piece->values.size() != sizeof(uint64_t)) {
    return std::nullopt;
  }
  uint64_t value = 0;
  std::memcpy(&value, piece->values.data(), sizeof(value));
  return value;
}

std::span<const float> StateReader::floats(std::string_view parameter, std::string_view name,
                                           size_t numel) {
  const auto view = tensor(parameter, name);
  check(view.has_value(), name_of(parameter, name), " is missing, must be there");
  check(view->numel == numel, name_of(parameter, name), " has ", view->numel,
        " elements, expected ", numel);
  return view->as<float>();
}

uint64_t StateReader::number(std::string_view parameter, std::string_view name) {
  const auto value = scalar(parameter, name);
  check(value.has_value(), name_of(parameter, name), " is missing, must be there");
  return *value;
}

}  // namespace trainer
