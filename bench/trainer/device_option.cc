#include "bench/trainer/device_option.h"

#include <algorithm>
#include <charconv>

#include "bench/trainer/options.h"
#include "gradwire/comm/exchange.h"
#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

using gradwire::concat;

std::string exchanges_on_a_gpu() {
  std::string names = "auto";
  for (const gradwire::ExchangeRow& row : gradwire::exchange_registry()) {
    names += row.on_gpu != nullptr ? concat(", ", row.name) : "";
  }
  return names;
}

bool is_on_a_gpu(std::string_view exchange) {
  const auto rows = gradwire::exchange_registry();
  return exchange == "auto" || std::any_of(rows.begin(), rows.end(), [&](const auto& row) {
           return row.name == exchange && row.on_gpu != nullptr;
         });
}

void refuse_what_a_gpu_has_not(const Options& o) {
  const auto refuse = [&](bool given, auto option, const auto& value, const auto& expected) {
    if (given) {
      throw BadArguments(concat("--", option, " is ", value, " with --device ", o.device.text,
                                ", expected ", expected));
    }
  };
  refuse(o.transport != "nccl", "transport", o.transport,
         "nccl: the others carry memory of the CPU");
  refuse(o.automatic.has_value(), "method", method_text(o),
         "a method: what auto measures it measures by the host's clock");
  refuse(exchanges_momenta(o), "optimizer", o.optimizer.name,
         "an optimizer of gradients: whether this one exchanges momenta the host would have to ask "
         "the GPU in every step");
  refuse(o.local_steps > 1, "local-steps", o.local_steps, "1: they are there on a CPU alone");
  refuse(!is_on_a_gpu(o.exchange), "exchange", o.exchange, exchanges_on_a_gpu());
  refuse(o.group.pacing.bits_per_second > 0, "pace",
         concat(o.group.pacing.bits_per_second, " bit/s"), "none: nccl's links cannot be paced");
}

}  // namespace

DeviceOption parse_device(std::string_view text) {
  if (text == "cpu" || text == "cuda") {
    return {.text = std::string(text), .gpu = text == "cuda"};
  }
  constexpr std::string_view kPrefix = "cuda:";
  int index = 0;
  const char* const end = text.data() + text.size();
  if (text.starts_with(kPrefix)) {
    const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, index);
    if (error == std::errc() && stop == end && index >= 0) {
      return {.text = std::string(text), .gpu = true, .index = index};
    }
  }
  throw BadArguments(concat("value is '", text, "', expected cpu, cuda or cuda:N"));
}

void complete_device(Options& o) {
  if (!o.device.gpu) {
    if (o.transport == "nccl") {
      throw BadArguments(
          "--transport is nccl with --device cpu, expected --device cuda: nccl carries memory of "
          "GPUs");
    }
    return;
  }
  refuse_what_a_gpu_has_not(o);
  const int gpus = gradwire::cuda::device_count();
  if (gpus == 0) {
    throw BadArguments(concat("--device is ", o.device.text,
                              ", and there is no GPU: ", gradwire::cuda::unavailable_reason()));
  }
  const int index = o.device.index.value_or(o.group.rank % gpus);
  if (index >= gpus) {
    throw BadArguments(
        concat("--device is ", o.device.text, ", must be below cuda:", gpus, " on this machine"));
  }
  o.group.nccl.device_index = index;
}

}  // namespace trainer
