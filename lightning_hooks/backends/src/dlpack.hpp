// The exchange table of DLPack 1, which torch provides as `torch.Tensor.__dlpack_c_exchange_api__`: a stable interface in C to the
// memory of a tensor, so nothing of torch is compiled or linked.
// Source of the layout: DLPack 1.3, include/dlpack/dlpack.h, https://github.com/dmlc/dlpack (Apache License 2.0).
#pragma once

#include <cstdint>

namespace hooks {

struct DlTensor {
  void* data;
  struct {
    int type;
    std::int32_t id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
constexpr int kDlCpu = 1;
constexpr int kDlFloat = 2, kDlBFloat = 4;

struct DlExchange {
  struct {
    std::uint32_t major, minor;
  } version;
  DlExchange* older;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  // Fills `out` with pointers that `object` owns. Returns 0, or -1 with a Python error set.
  int (*tensor_from_object)(void* object, DlTensor* out);
  // Sets `stream` to the stream on which torch now works on a device. Returns 0, or another number on an error.
  int (*work_stream)(int device_type, std::int32_t device, void** stream);
};
constexpr std::uint32_t kDlMajor = 1;
constexpr char kDlCapsule[] = "dlpack_exchange_api";

}  // namespace hooks
