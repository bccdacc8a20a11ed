#include "gradwire/bindings/python_files.h"

#include <cstring>
#include <streambuf>
#include <vector>

#include "gradwire/bindings/python_calls.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire::bindings {
namespace {

namespace py = pybind11;

constexpr size_t kBufferBytes = size_t{1} << 20;  // a call into Python costs more than a copy

std::string_view type_name(const py::object& object) { return Py_TYPE(object.ptr())->tp_name; }

class Writer final : public std::streambuf {
 public:
  explicit Writer(py::object file) : file_(keep(std::move(file))), buffer_(kBufferBytes) {
    setp(buffer_.data(), buffer_.data() + buffer_.size());
  }

 protected:
  int_type overflow(int_type c) override {
    write_buffer();
    if (!traits_type::eq_int_type(c, traits_type::eof())) {
      *pptr() = traits_type::to_char_type(c);
      pbump(1);
    }
    return traits_type::not_eof(c);
  }
  int sync() override {
    write_buffer();
    return 0;
  }

 private:
  void write_buffer() {
    const py::gil_scoped_acquire gil;
    const Callback callback;
    for (const char* from = pbase(); from != pptr();) {
      const auto left = static_cast<size_t>(pptr() - from);
      const py::object took = file_->attr("write")(py::bytes(from, left));
      check(py::isinstance<py::int_>(took), "file: write() returned a ", type_name(took),
            ", expected how many bytes it took");
      const auto count = took.cast<int64_t>();
      check(count > 0 && static_cast<size_t>(count) <= left, "file: write() took ", count, " of ",
            left, " bytes, expected at least one and at most all");
      from += count;
    }
    setp(buffer_.data(), buffer_.data() + buffer_.size());
  }

  const std::shared_ptr<py::object> file_;
  std::vector<char> buffer_;
};

class Reader final : public std::streambuf {
 public:
  explicit Reader(py::object file) : file_(keep(std::move(file))), buffer_(kBufferBytes) {}

 protected:
  int_type underflow() override {
    const py::gil_scoped_acquire gil;
    const Callback callback;
    const py::object got = file_->attr("read")(buffer_.size());
    check(py::isinstance<py::bytes>(got), "file: read() returned a ", type_name(got),
          ", expected bytes");
    const std::string_view bytes = got.cast<py::bytes>();
    check(bytes.size() <= buffer_.size(), "file: read() returned ", bytes.size(),
          " bytes, expected at most ", buffer_.size());
    if (bytes.empty()) {
      return traits_type::eof();
    }
    std::memcpy(buffer_.data(), bytes.data(), bytes.size());
    setg(buffer_.data(), buffer_.data(), buffer_.data() + bytes.size());
    return traits_type::to_int_type(buffer_[0]);
  }

 private:
  const std::shared_ptr<py::object> file_;
  std::vector<char> buffer_;
};

template <class Buffer>
struct Owned {
  explicit Owned(py::object file) : buffer(std::move(file)) {}
  Buffer buffer;
};

/// A stream with the buffer it uses.
template <class Stream, class Buffer>
class StreamOver final : private Owned<Buffer>, public Stream {
 public:
  explicit StreamOver(py::object file)
      : Owned<Buffer>(std::move(file)), Stream(&(this->Owned<Buffer>::buffer)) {
    this->exceptions(std::ios::badbit);  // else streams swallow what their buffers throw
  }
};

}  // namespace

std::unique_ptr<std::ostream> write_to(py::object file) {
  return std::make_unique<StreamOver<std::ostream, Writer>>(std::move(file));
}

std::unique_ptr<std::istream> read_from(py::object file) {
  return std::make_unique<StreamOver<std::istream, Reader>>(std::move(file));
}

}  // namespace gradwire::bindings
