#include "tensor.hpp"

#include "team.hpp"

namespace hooks {
namespace {

// The arguments of `setup_kernel`, as strong references that are never released.
PyObject* tensor_types[2] = {};
PyObject* thread_number = nullptr;
PyObject* is_negated = nullptr;
const DlExchange* exchange = nullptr;

}  // namespace

unsigned threads_for(std::int64_t elements) {
  if (elements < kWorthTeam) return 1;
  const unsigned team = team_size();  // equals `torch.get_num_threads()`, without calling Python
  if (team > 0) return team;
  PyObject* const number = PyObject_CallNoArgs(thread_number);
  const long known = number ? PyLong_AsLong(number) : -1;
  Py_XDECREF(number);
  PyErr_Clear();
  return known > 1 ? static_cast<unsigned>(known) : 1;
}

const DlExchange* exchange_table() { return exchange; }

bool describe(PyObject* object, DlTensor& found) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  if (type != tensor_types[0] && type != tensor_types[1]) return false;
  if (exchange->tensor_from_object(object, &found) == 0) return true;
  // The tensor has no strided memory, because it is sparse or inside a transform of `torch.func`, for example.
  PyErr_Clear();
  return false;
}

bool is_parameter(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == tensor_types[1]; }

int is_negative_view(PyObject* object) {
  PyObject* const negated = PyObject_CallFunctionObjArgs(is_negated, object, nullptr);
  const int is_negative = negated ? PyObject_IsTrue(negated) : -1;
  Py_XDECREF(negated);
  return is_negative;
}

int view_of(PyObject* object, View& view, bool may_be_negated) {
  DlTensor found;
  if (!describe(object, found)) return 0;
  if (found.device.type != kDlCpu || found.dtype.lanes != 1) return 0;
  const int bits = found.dtype.bits;
  if (found.dtype.code == kDlBFloat && bits == 16) {
    view.kind = Kind::bf16;
  } else if (found.dtype.code == kDlFloat && (bits == 16 || bits == 32 || bits == 64)) {
    view.kind = bits == 16 ? Kind::f16 : bits == 32 ? Kind::f32 : Kind::f64;
  } else {
    return 0;
  }
  view.lay_out(found.shape, found.strides, found.ndim);
  // The memory may hold the negatives of the elements, which the exchange table does not report. Such a tensor is the imaginary part
  // of a conjugated tensor (`z.conj().imag`), so a contiguous tensor with several elements needs no test.
  if (may_be_negated && (!view.gaps.empty() || view.numel <= 1)) {
    const int is_negative = is_negative_view(object);
    if (is_negative != 0) return is_negative > 0 ? 0 : -1;
  }
  // Autograd represents some zero gradients by tensors without memory.
  if (!found.data && view.numel != 0) return 0;
  view.data = static_cast<const char*>(found.data) + found.byte_offset;
  return 1;
}

int view_of_difference(PyObject* left, PyObject* right, View& view) {
  View other;
  int found = view_of(left, view);
  if (found > 0) found = view_of(right, other);
  if (found <= 0) return found;
  DlTensor a, b;  // their shapes and strides point into the Python tensors
  if (exchange->tensor_from_object(left, &a) != 0 || exchange->tensor_from_object(right, &b) != 0) return -1;
  bool same = view.kind == other.kind && view.gaps.empty() && other.gaps.empty() && view.copies == 1 && other.copies == 1 &&
              a.ndim == b.ndim;
  for (int d = 0; d < a.ndim && same; ++d) {
    // DLPack may omit the strides of a contiguous tensor. Require that both tensors have strides or neither has.
    same = a.shape[d] == b.shape[d] && !a.strides == !b.strides;
    same = same && (!a.strides || a.shape[d] == 1 || a.strides[d] == b.strides[d]);
  }
  if (!same) return 0;
  view.minus = other.data;
  view.stored = view.kind;
  if (size_of(view.kind) == 2) view.kind = Kind::f32;
  return 1;
}

int view_of_units(PyObject* object, Py_ssize_t axis, View& view, UnitLayout& layout) {
  const int found = view_of(object, view);
  if (found <= 0) return found;
  DlTensor tensor;  // its shape and strides point into the Python tensor
  if (exchange->tensor_from_object(object, &tensor) != 0) return -1;
  return view.gaps.empty() && view.copies == 1 && lay_out_units(tensor, view.numel, axis, layout);
}

bool lay_out_units(const DlTensor& tensor, std::int64_t numel, Py_ssize_t axis, UnitLayout& layout) {
  if (axis < 0) axis += tensor.ndim;
  if (axis < 0 || axis >= tensor.ndim) return false;
  layout.units = tensor.shape[axis];
  if (numel == 0) return true;
  layout.inner = numel / layout.units;
  if (layout.units > 1) {
    // Without gaps, the stride of a dimension is the product of the sizes of all faster dimensions, whatever their order.
    layout.inner = 1;
    for (int d = static_cast<int>(axis) + 1; d < tensor.ndim && !tensor.strides; ++d) layout.inner *= tensor.shape[d];
    if (tensor.strides) layout.inner = tensor.strides[axis];
  }
  layout.outer = numel / layout.units / layout.inner;
  return true;
}

bool measure_views(const View* views, std::size_t many, RowMoments* rows) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < many; ++i) elements += views[i].numel;
  return unlocked(elements, [=](unsigned threads) { measure(views, many, rows, threads); });
}

bool measure_view_of_units(const View& view, const UnitLayout& layout, RowMoments& row, double* units) {
  return unlocked(view.numel, [&](unsigned threads) { measure_units(view, layout, row, units, threads); });
}

PyObject* py_setup_kernel(PyObject*, PyObject* args) {
  PyObject *tensor, *parameter, *negated, *capsule, *number;
  const char* openmp = nullptr;
  if (!PyArg_ParseTuple(args, "OOOOOz:setup_kernel", &tensor, &parameter, &negated, &capsule, &number, &openmp)) return nullptr;
  auto* table = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule, kDlCapsule));
  if (!table) return nullptr;
  while (table && table->version.major != kDlMajor) table = table->older;
  if (!table || !table->tensor_from_object) {
    PyErr_SetString(PyExc_ImportError, "the DLPack exchange table of torch is of another version");
    return nullptr;
  }
  for (PyObject* kept : {tensor, parameter, negated, number}) Py_INCREF(kept);
  tensor_types[0] = tensor;
  tensor_types[1] = parameter;
  is_negated = negated;
  thread_number = number;
  exchange = table;
  if (openmp) find_team(openmp);
  Py_RETURN_NONE;
}

}  // namespace hooks
