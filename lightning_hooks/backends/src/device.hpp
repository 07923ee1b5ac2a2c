// Tensors in the memory of a device, and the functions of the device's driver. The driver is never linked: Python passes the addresses
// of its functions, so a test can pass others.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Functions of the driver of CUDA devices, which return 0 on success: cuLaunchKernel, cuCtxGetCurrent and cuStreamIsCapturing; and
// `current_work_stream` of the exchange table of torch.
struct Driver {
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra);
  int (*context)(void** context);
  int (*is_capturing)(void* stream, int* status);
  int (*stream)(int device_type, std::int32_t device, void** stream);
};

constexpr int kDlCuda = 2;

// A device as DLPack names it. All devices of type kDlCpu, which stands in for a device in tests, are the same device.
struct Device {
  int type;
  std::int32_t index;
};

// Elements that lie one after the other in the memory of a device, in any order. The codes of types are those of triton_code.py.
struct DeviceTensor {
  std::int64_t address, size;
  int code;
};
constexpr int kDeviceCodes = 4;  // float32, float16, bfloat16, float64

inline std::int64_t divided_up(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

// Returns the number of blocks in a span, if there are so many blocks in all. Arguments: the number of blocks, the programs of a launch, and
// the most blocks of a span. See `_steps` in cuda.py.
std::int64_t blocks_of_span(std::int64_t blocks, std::int64_t programs, std::int64_t most_blocks);

// Looks up the elements of a tensor. Returns false without a Python error if Python must look at the tensor: another device or type,
// a subclass, gaps between elements, an address that is no multiple of 16, or no memory.
bool find_on_device(PyObject* object, const Device& device, DeviceTensor& out);

}  // namespace hooks
