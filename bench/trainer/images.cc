#include "bench/trainer/images.h"

#include "bench/trainer/cifar.h"
#include "bench/trainer/idx.h"

namespace trainer {

DataFolder load_folder(const std::string& folder) {
  return is_cifar_folder(folder) ? load_cifar_folder(folder) : load_idx_folder(folder);
}

}  // namespace trainer
