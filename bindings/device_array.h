#pragma once
// Memory of a GPU as Python holds it: what gradwire itself keeps or hands out there.

#include <memory>
#include <string>
#include <vector>

#include "gradwire/bindings/tensor.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/external_stream.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire::bindings {

/// "cpu", "cuda" (the first GPU) or "cuda:1". @throws InvalidArgument for anything else.
Device parse_device(const std::string& text);

/// Of memory in stream order, which streams of others may have been told to read: waits for all.
struct DeviceFree {
  int device_index = 0;
  void operator()(std::byte* memory) const noexcept {
    try {
      cuda::wait_for_device(device_index);
    } catch (const DeviceError&) {  // sticky: nothing runs any more, and later calls say so
    }
    cuda::deallocate(memory, device_index);
  }
};

/// A contiguous array in the memory of a GPU, which other libraries take by DLPack without a copy.
class DeviceArray {
 public:
  /// New memory in the order of the place's stream, zero; nothing waits. Its end waits for the GPU,
  /// without the GIL. @throws InvalidArgument while that stream is captured: a graph's memory is
  /// there only while the graph runs.
  DeviceArray(std::string dtype, std::vector<size_t> shape, const Place& place);
  /// A view; `owner` keeps the memory.
  DeviceArray(std::string dtype, std::vector<size_t> shape, const Place& place, void* data,
              py::object owner);

  ~DeviceArray();
  DeviceArray(DeviceArray&&) = default;
  DeviceArray& operator=(DeviceArray&&) = delete;

  /// A call on that stream writes it, behind what export has made it wait for.
  void written_on(void* stream) { place_.stream = stream; }

  void* data() const { return data_; }
  const std::string& dtype() const { return dtype_; }
  const std::vector<size_t>& shape() const { return shape_; }
  const Place& place() const { return place_; }
  size_t numel() const;
  size_t size_bytes() const;

  /// `self` is what Python holds. @throws InvalidArgument for another device, and for a copy.
  static py::object dlpack(py::object self, py::handle stream, py::handle max_version,
                           py::handle dl_device, py::handle copy);
  /// A copy as a NumPy array; waits for what was enqueued on the stream of the last write.
  py::array to_numpy() const;
  /// The other way round. @throws InvalidArgument for another number of bytes, or another order.
  void assign(py::handle from);

 private:
  std::string dtype_;
  std::vector<size_t> shape_;
  Place place_;
  std::unique_ptr<std::byte, DeviceFree> memory_;  // unless it is a view
  void* data_ = nullptr;
  py::object owner_;
};

/// A new array shaped as `source`, with its elements, which are copied on the place's stream.
std::unique_ptr<DeviceArray> device_copy(py::handle source, std::string_view what,
                                         const Place& place);

}  // namespace gradwire::bindings
