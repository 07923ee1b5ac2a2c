#include "device.hpp"

#include <algorithm>

namespace hooks {
namespace {

constexpr std::uintptr_t kAligned = 16;  // bytes: the alignment that the widest loads of a GPU need

// Returns the code of a type of elements, or -1 for a type that the kernels do not measure.
int code_of(const DlTensor& tensor) {
  const int code = tensor.dtype.code, bits = tensor.dtype.bits;
  if (tensor.dtype.lanes != 1) return -1;
  if (code == kDlBFloat) return bits == 16 ? 2 : -1;
  if (code != kDlFloat) return -1;
  return bits == 32 ? 0 : bits == 16 ? 1 : bits == 64 ? 3 : -1;
}

}  // namespace

std::int64_t blocks_of_span(std::int64_t blocks, std::int64_t programs, std::int64_t most_blocks) {
  const std::int64_t steps = divided_up(blocks, divided_up(programs, 2));
  if (steps > most_blocks / 2) return std::min(divided_up(blocks, programs), most_blocks);
  return std::max<std::int64_t>(1, steps);
}

bool find_on_device(PyObject* object, const Device& device, DeviceTensor& out) {
  DlTensor found;
  if (!describe(object, found)) return false;
  if (found.device.type != device.type || (device.type != kDlCpu && found.device.id != device.index)) return false;
  out.code = code_of(found);
  if (out.code < 0) return false;
  View view;
  view.lay_out(found.shape, found.strides, found.ndim);
  if (!view.gaps.empty() || view.copies != 1) return false;
  // A tensor that holds the negatives of its elements is the imaginary part of a conjugated tensor, which has gaps if it has several
  // elements.
  if (view.numel <= 1 && is_negative_view(object) != 0) {
    PyErr_Clear();
    return false;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(found.data) + found.byte_offset;
  // Autograd represents some zero gradients by tensors without memory.
  if ((view.numel != 0 && !found.data) || address % kAligned != 0) return false;
  out.address = static_cast<std::int64_t>(address);
  out.size = view.numel;
  return true;
}

}  // namespace hooks
