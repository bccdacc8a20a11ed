#pragma once
// One optimizer twice, on the CPU and on the GPU of the tests, with equal parameters: what every
// comparison of the two needs.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/optimizers/optimizer.h"
#include "tests/optimizers/model.h"
#include "tests/simt/device.h"

namespace gradwire::testing {

/// Elements of one type and device; each array at an offset of its own between guards.
class Arrays {
 public:
  Arrays(const std::vector<size_t>& sizes, DType dtype, Device device)
      : sizes_(sizes), dtype_(dtype), device_(device) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      bytes_.emplace_back(2 * kGuard + offset(i) + sizes[i] * size_of(dtype), kFill);
    }
  }
  TensorView view(size_t i) {
    std::byte* const memory = device_ == Device{} ? bytes_[i].host() : bytes_[i].data();
    return {memory + kGuard + offset(i), sizes_[i], dtype_, device_};
  }
  void set(const std::vector<std::vector<float>>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t k = 0; k < values[i].size(); ++k) {
        put(i, k, values[i][k]);
      }
    }
  }
  void put(size_t i, size_t element, float x) {
    dispatch(dtype_, [&]<class T>() {
      const T value = from_float<T>(x);
      std::memcpy(bytes_[i].host() + kGuard + offset(i) + element * sizeof(T), &value,
                  sizeof value);
    });
  }
  std::vector<float> floats(size_t i) const {
    std::vector<float> values(sizes_[i]);
    dispatch(dtype_, [&]<class T>() {
      for (size_t k = 0; k < values.size(); ++k) {
        T value;
        std::memcpy(&value, bytes_[i].host() + kGuard + offset(i) + k * sizeof(T), sizeof value);
        values[k] = to_float(value);
      }
    });
    return values;
  }
  /// The other's elements, bit for bit.
  void copy(const Arrays& other) {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      std::copy(other.bytes_[i].begin(), other.bytes_[i].end(), bytes_[i].begin());
    }
  }
  /// With the guards.
  std::vector<std::vector<std::byte>> bytes() const {
    std::vector<std::vector<std::byte>> all;
    for (const auto& array : bytes_) {
      all.emplace_back(array.begin(), array.end());
    }
    return all;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr std::byte kFill{0xA5};
  size_t offset(size_t i) const { return i % 4 * 4 + (size_of(dtype_) == 2 ? i % 2 * 2 : 0); }
  std::vector<size_t> sizes_;
  DType dtype_;
  Device device_;
  std::vector<DeviceArray<std::byte>> bytes_;
};

struct Precision {
  DType value = DType::kFloat32, gradient = DType::kFloat32;
  MasterWeights master = MasterWeights::kRemainder;
  bool replicas = false;  ///< every second parameter is one that another rank counts
};

/// An optimizer and its parameters on one device.
class Side {
 public:
  Side(OptimizerSpec spec, const std::vector<size_t>& sizes, Precision precision, Device device)
      : values(sizes, precision.value, device),
        gradients(sizes, precision.gradient, device),
        workspace_(device) {
    if (device == Device{}) {
      stream_ = make_inline_stream(1);
    } else {
      stream_ = std::make_unique<TestStream>();
    }
    Model model(sizes);
    values.set(model.values);
    gradients.set(model.gradients);
    spec.master = precision.master;
    std::vector<Parameter> parameters = model.parameters(3);
    for (size_t i = 0; i < sizes.size(); ++i) {
      parameters[i].value = values.view(i);
      parameters[i].gradient = gradients.view(i);
      parameters[i].replica = precision.replicas && i % 2 == 1;
      places.push_back({values.view(i), gradients.view(i)});
    }
    optimizer = make_optimizer(spec, std::move(parameters), model_groups());
  }

  Context context() { return {*stream_, workspace_}; }
  Stream& stream() { return *stream_; }
  /// Enqueues the step and waits for it.
  void step(const StepOptions& options) {
    Context c = context();
    optimizer->apply(options, c);
    stream_->wait();
  }
  void synchronize() {
    Context c = context();
    optimizer->synchronize(c);
  }
  uint64_t skipped() {
    Context c = context();
    return optimizer->skipped_steps(c);
  }

  using Bytes = std::map<std::string, std::vector<std::byte>>;
  /// Values between their guards, all state, and the counts of steps.
  Bytes everything() {
    Bytes all = state();
    const auto of_values = values.bytes();
    for (size_t i = 0; i < of_values.size(); ++i) {
      all["layer" + std::to_string(i)] = of_values[i];
    }
    return all;
  }
  Bytes state() {
    Visitor visitor(*stream_, nullptr);
    optimizer->visit_state(visitor);
    return visitor.state;
  }
  void restore(Bytes state) {
    Visitor visitor(*stream_, &state);
    optimizer->visit_state(visitor);
  }

  Arrays values, gradients;
  std::vector<Binding> places;
  std::unique_ptr<Optimizer> optimizer;

 private:
  /// Reads what it sees, or writes it.
  struct Visitor : StateVisitor {
    Visitor(Stream& on, Bytes* source) : stream(on), from(source) {}
    void tensor(std::string_view parameter, std::string_view name, TensorView value) override {
      bytes(parameter, name, {static_cast<std::byte*>(value.data), value.size_bytes()},
            value.device);
    }
    void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> memory,
               Device device) override {
      std::vector<std::byte>& found = at(parameter, name, memory.size());
      if (from != nullptr) {
        copy_bytes(memory, device, found, {}, stream);
      } else {
        copy_bytes(found, {}, memory, device, stream);
      }
      stream.wait();
    }
    void scalar(std::string_view parameter, std::string_view name, uint64_t& value) override {
      std::vector<std::byte>& bytes = at(parameter, name, sizeof value);
      if (from != nullptr) {
        std::memcpy(&value, bytes.data(), sizeof value);
      } else {
        std::memcpy(bytes.data(), &value, sizeof value);
      }
    }
    std::vector<std::byte>& at(std::string_view parameter, std::string_view name, size_t size) {
      std::vector<std::byte>& found =
          (from != nullptr ? *from : state)[concat(parameter, "/", name)];
      found.resize(size);
      return found;
    }
    Stream& stream;
    Bytes* from;
    Bytes state;
  };

  std::unique_ptr<Stream> stream_;
  Workspace workspace_;
};

/// The same on both sides.
struct Pair {
  Pair(const OptimizerSpec& spec, const std::vector<size_t>& sizes, Precision precision = {})
      : cpu(spec, sizes, precision, {}), gpu(spec, sizes, precision, kEmulated), model_(sizes) {}

  void fill_gradients(unsigned step, float factor = 1.0f) {
    model_.fill_gradients(step);
    for (auto& gradient : model_.gradients) {
      for (float& x : gradient) {
        x *= factor;
      }
    }
    both([&](Side& side) { side.gradients.set(model_.gradients); });
  }
  template <class F>
  void both(const F& f) {
    f(cpu);
    f(gpu);
  }
  void step(const StepOptions& options) {
    both([&](Side& side) { side.step(options); });
  }
  void expect_same(const char* after) {
    const Side::Bytes on_cpu = cpu.everything(), on_gpu = gpu.everything();
    ASSERT_EQ(on_cpu.size(), on_gpu.size()) << after;
    for (const auto& [name, bytes] : on_cpu) {
      ASSERT_TRUE(on_gpu.at(name) == bytes) << name << " differs after " << after;
    }
  }

  Side cpu, gpu;

 private:
  Model model_;
};

}  // namespace gradwire::testing
