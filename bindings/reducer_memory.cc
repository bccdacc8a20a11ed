// The Reducer for frameworks that keep gradients themselves: by address, several at once.

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/bindings/plan.h"
#include "gradwire/bindings/reducer.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/elementwise_cuda.h"

namespace gradwire::bindings {
namespace {

constexpr size_t kChunk = 4096;  // floats on the stack, between two dtypes

DType dtype_named(const std::string& name) { return parse_dtype(py::str(name)); }

// to[i] = factor * from[i], rounded to the dtype of `to`, in CPU memory.
void copy_on_cpu(ConstTensorView from, TensorView to, float factor) {
  if (from.dtype == to.dtype && factor == 1.0f) {
    std::memcpy(to.data, from.data, to.size_bytes());
    return;
  }
  if (from.dtype == DType::kFloat32 && to.dtype == DType::kFloat32) {
    cpu::multiply(from.as<float>(), factor, to.as<float>());
    return;
  }
  float between[kChunk];
  for (size_t begin = 0; begin < to.numel; begin += kChunk) {
    const size_t count = std::min(kChunk, to.numel - begin);
    const std::span<float> part(between, count);
    cpu::widen(from.subview(begin, count), part);
    if (factor != 1.0f) {
      cpu::multiply(part, factor, part);
    }
    cpu::narrow(part, to.subview(begin, count));
  }
}

// Parameters whose gradients lie one after another in memory of the caller.
struct Run {
  std::vector<ParamId> parameters;
  uintptr_t address = 0;
  DType dtype = DType::kFloat32;
  Device device{};

  // Before anything is changed.
  void check_all(const Plan& plan) const {
    check(address != 0 || parameters.empty(), "address: is 0, must be that of the first gradient");
    for (const ParamId p : parameters) {
      parameter_of(plan, p);
    }
  }
  // body(parameter, its place in the caller's memory)
  template <class Body>
  void each(const Plan& plan, const Body& body) const {
    auto* place = reinterpret_cast<std::byte*>(address);
    for (const ParamId p : parameters) {
      const TensorView view{place, plan.parameters[p].numel(), dtype, device};
      body(p, view);
      place += view.size_bytes();
    }
  }
};

// Where the reducer works: at once, or enqueued on its stream.
class Copier {
 public:
  Copier(const BoundReducer& reducer, float factor, uintptr_t scale, cuda::Factor::With with)
      : reducer_(reducer),
        factor_{factor, reinterpret_cast<const float*>(scale), with} {
    check(scale == 0 || reducer.on_gpu(), "scale: is an address, must be 0, because gradients are ",
          "in CPU memory, where factor has all of it");
  }
  Device device() const { return reducer_.device(); }
  void copy(ConstTensorView from, TensorView to) const {
    if (reducer_.on_gpu()) {
      cuda::multiply(from, factor_, to, reducer_.stream());
    } else {
      copy_on_cpu(from, to, factor_.value);
    }
  }

 private:
  const BoundReducer& reducer_;
  const cuda::Factor factor_;
};

void give_from(BoundReducer& self, std::vector<ParamId> parameters, uintptr_t address,
               const std::string& dtype, float factor, uintptr_t scale) {
  const Copier copier(self, factor, scale, cuda::Factor::With::kQuotient);
  const Run run{std::move(parameters), address, dtype_named(dtype), copier.device()};
  self.run_at_once([&](Reducer& reducer) {
    run.check_all(reducer.plan());
    run.each(reducer.plan(), [&](ParamId p, TensorView given) {
      copier.copy(given, reducer.gradient(p));
      reducer.grad_ready(p);
    });
  });
}

void write_means(BoundReducer& self, std::vector<ParamId> parameters, uintptr_t address,
                 const std::string& dtype, float factor, uintptr_t scale) {
  const Copier copier(self, factor, scale, cuda::Factor::With::kProduct);
  const Run run{std::move(parameters), address, dtype_named(dtype), copier.device()};
  self.run_at_once([&](Reducer& reducer) {
    run.check_all(reducer.plan());
    run.each(reducer.plan(), [&](ParamId p, TensorView wanted) {
      copier.copy(reducer.gradient(p), wanted);
    });
  });
}

bool copy_residual(BoundReducer& self, ParamId p, uintptr_t address) {
  return self.run([&](Reducer& reducer) {
    const size_t numel = parameter_of(reducer.plan(), p).numel();
    check(address != 0, "address: is 0, must be that of ", numel, " floats");
    return reducer.copy_residual(p, {reinterpret_cast<float*>(address), numel});
  });
}

void bucket_ready_at(BoundReducer& self, BucketId bucket, uintptr_t address, size_t numel) {
  self.run_at_once([&](Reducer& reducer) {
    check(address != 0, "address: is 0, must be that of the bucket's gradient");
    reducer.bucket_ready(bucket, {reinterpret_cast<void*>(address), numel, reducer.plan().dtype,
                                  self.device()});
  });
}

// Runs of elements one behind another in memory, and where each goes.
struct Move {
  size_t from, to, bytes;
  bool slides;  // its order among the other large ones stays: it moves where it lies
};

// The i-th run is then the one that was at order[i]. Of two runs whose order changes the smaller one is
// taken out and put back.
std::vector<Move> moves_of(size_t item_bytes, const std::vector<size_t>& numels,
                           const std::vector<size_t>& order) {
  const size_t count = numels.size();
  std::vector<Move> moves(count, Move{0, 0, 0, true});
  std::vector<bool> known(count, false);
  check(order.size() == count, "order: has ", order.size(), " places, must have ", count);
  for (size_t i = 0, from = 0, to = 0; i < count; ++i) {
    const size_t run = order[i];
    check(run < count && !known[run], "order: place ", i, " is ", run,
          ", must be each number below ", count, " once");
    known[run] = true;
    moves[i].from = from;
    moves[i].bytes = numels[i] * item_bytes;
    from += moves[i].bytes;
    moves[run].to = to;
    to += numels[run] * item_bytes;
  }
  std::vector<size_t> by_size(order);
  std::ranges::stable_sort(by_size, std::greater<>(), [&](size_t run) { return numels[run]; });
  std::vector<size_t> sliding;
  for (const size_t run : by_size) {
    moves[run].slides = std::ranges::all_of(sliding, [&](size_t other) {
      return (moves[run].from < moves[other].from) == (moves[run].to < moves[other].to);
    });
    if (moves[run].slides) {
      sliding.push_back(run);
    }
  }
  return moves;
}

void move_elements(uintptr_t address, size_t item_bytes, const std::vector<size_t>& numels,
                   const std::vector<size_t>& order) {
  check(address != 0, "address: is 0, must be that of the first element");
  const std::vector<Move> moves = moves_of(item_bytes, numels, order);
  auto* const memory = reinterpret_cast<std::byte*>(address);
  size_t taken_bytes = 0;
  for (const Move& move : moves) {
    taken_bytes += move.slides ? 0 : move.bytes;
  }
  std::vector<std::byte> taken(taken_bytes);
  const auto each_taken = [&](const auto& body) {
    std::byte* place = taken.data();
    for (const Move& move : moves) {
      if (!move.slides) {
        body(move, place);
        place += move.bytes;
      }
    }
  };
  const auto slide = [&](const Move& move, bool wanted) {
    if (move.slides && wanted) {
      std::memmove(memory + move.to, memory + move.from, move.bytes);
    }
  };
  each_taken([&](const Move& move, std::byte* place) {
    std::memcpy(place, memory + move.from, move.bytes);
  });
  // No run moves over one that is still to move: those that go back begin with the last.
  for (size_t i = moves.size(); i-- > 0;) {
    slide(moves[i], moves[i].to > moves[i].from);
  }
  for (const Move& move : moves) {
    slide(move, move.to < move.from);
  }
  each_taken([&](const Move& move, const std::byte* place) {
    std::memcpy(memory + move.to, place, move.bytes);
  });
}

}  // namespace

void bind_memory(py::module_& module, ReducerClass& type) {
  module.def("move_elements", &move_elements, py::arg("address"), py::arg("item_bytes"),
             py::arg("numels"), py::arg("order"), py::call_guard<py::gil_scoped_release>(),
             "Changes the order of runs of elements that lie one behind another in CPU memory, with "
             "room beside it for those alone whose order among the large ones changes.\n\n"
             "Args:\n    address: of the first element.\n    item_bytes: of an element.\n"
             "    numels: of each run.\n    order: the i-th run is then the one that was at "
             "order[i].\n\nRaises:\n    InvalidArgument: the order is no permutation; nothing has "
             "moved.");
  type.def("give_from", &give_from, py::arg("parameters"), py::arg("address"), py::arg("dtype"),
           py::arg("factor") = 1.0F, py::arg("scale") = 0,
           "Copies the gradients of these parameters, one after another in memory of `dtype` from "
           "`address` on, times factor, to gradient() of each, and says grad_ready(). Over a "
           "transport of GPU memory the address is the GPU's, and the copies are enqueued on the "
           "reducer's stream; `scale` is the address there of a float32 to divide by, such as a "
           "loss scale, or 0.\n\n"
           "Raises:\n    InvalidArgument: no such parameter; nothing was changed. Or one that was "
           "ready already: those before it have been handed over.")
      .def("write_means", &write_means, py::arg("parameters"), py::arg("address"), py::arg("dtype"),
           py::arg("factor") = 1.0F, py::arg("scale") = 0,
           "The other way, after wait(): what is in gradient() of these parameters, times factor, "
           "and on a GPU times the float32 at `scale`, to memory of `dtype` from `address` on.")
      .def("copy_residual", &copy_residual, py::arg("parameter"), py::arg("address"),
           "Over a transport of GPU memory: enqueues a copy of the committed residual, float32, to "
           "that GPU's memory at `address`, on the reducer's stream, and does not wait. Between "
           "steps. Returns whether there is one: without error feedback nothing is written.\n\n"
           "Raises:\n    InvalidArgument: no such parameter, or gradients are in CPU memory, where "
           "residual() is there at once.")
      .def("bucket_ready_at", &bucket_ready_at, py::arg("bucket"), py::arg("address"),
           py::arg("numel"),
           "bucket_ready() with memory by address, which the caller keeps until wait() has "
           "returned, on a GPU until what it has enqueued is over: numel elements of the plan's "
           "dtype.");
}

}  // namespace gradwire::bindings
