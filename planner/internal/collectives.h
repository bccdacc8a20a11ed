#pragma once
// What traces say of a collective: elements and their type, under the names that it has had.

#include <optional>
#include <string_view>

#include "gradwire/kernels/core/dtype.h"
#include "gradwire/planner/internal/json_reader.h"

namespace gradwire::planner {

struct CollectiveSize {
  size_t numel = 0;
  std::optional<DType> dtype;  ///< none: not said
};

/// Of the arguments of a kernel or of the call that launched it: "In msg nelems" and "dtype", which
/// PyTorch writes from 2.2 on, else the first of "Input Dims" and of "Input type", which it writes
/// with record_shapes=True. None where neither says a size.
/// @throws InvalidArgument for a type that gradients do not have.
std::optional<CollectiveSize> collective_size(const JsonNode& args);

/// Of shapes and types as text: "[[[1000]], []]" and "['GenericList[Tensor(c10::BFloat16)]', ..]".
/// @throws InvalidArgument, after `place`, for shapes that are no such list.
std::optional<CollectiveSize> collective_size(std::string_view shapes, std::string_view types,
                                              std::string_view place);

/// Whether a kernel, by the "dtype" of its arguments or else by its name, is no exchange of
/// gradients but one of counts or flags: of parameters that were used, of batches.
bool sums_whole_numbers(const JsonNode& args, std::string_view kernel);

/// The last part of NCCL's kernel names: ncclKernel_AllReduce_RING_LL_Sum_float,
/// ncclDevKernel_AllReduce_Sum_bf16_RING_LL.
std::optional<DType> dtype_in_kernel_name(std::string_view name);

}  // namespace gradwire::planner
