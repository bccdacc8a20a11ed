#pragma once
// The structures of DLPack, version 1.0, as its specification lays them out:
// https://dmlc.github.io/dlpack/latest/c_api.html

#include <cstdint>

namespace gradwire::bindings::dlpack {

enum DeviceCode : int32_t { kCpu = 1, kCuda = 2, kPinned = 3 };
enum TypeCode : uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };
enum Flags : uint64_t { kReadOnly = 1, kIsCopied = 2 };

struct DeviceId {
  int32_t type;
  int32_t index;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  DeviceId device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  ///< in elements; null: C order
  uint64_t byte_offset;
};

/// In a capsule named "dltensor".
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed* self);
};

struct Version {
  uint32_t major, minor;
};

/// In a capsule named "dltensor_versioned".
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned* self);
  uint64_t flags;
  Tensor tensor;
};

inline constexpr const char* kName = "dltensor";
inline constexpr const char* kNameVersioned = "dltensor_versioned";
inline constexpr const char* kUsedName = "used_dltensor";
inline constexpr const char* kUsedNameVersioned = "used_dltensor_versioned";

}  // namespace gradwire::bindings::dlpack
