// The Python module `_native`: a thin layer over the C interface of Python, in its stable part, so that one binary serves
// every Python from 3.11 on; of torch it knows only the DLPack exchange table.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "dlpack.hpp"
#include "measure.hpp"

namespace {

using hooks::Row;
using hooks::View;

// What `setup` was told. Strong references, kept as long as the process.
PyObject* tensor_types[2] = {};
PyObject* thread_number = nullptr;
PyObject* is_negated = nullptr;
const hooks::DlExchange* exchange = nullptr;

// Fewer elements than this are read under the interpreter lock: getting it back may take longer than the reading.
constexpr std::int64_t kWorthRelease = 1 << 19;

// 1: the view is laid out. 0: not a plain tensor in the memory of this machine, or a type of number that is not measured
// here. -1: a Python error is set.
int look(PyObject* object, View& view, bool may_be_negated = true) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  if (type != tensor_types[0] && type != tensor_types[1]) return 0;
  hooks::DlTensor found;
  if (exchange->tensor_from_object(object, &found) != 0) {
    PyErr_Clear();  // no strided memory behind it: sparse, of a function transform, …
    return 0;
  }
  if (found.device.type != hooks::kDlCpu || found.dtype.lanes != 1) return 0;
  const int bits = found.dtype.bits;
  if (found.dtype.code == hooks::kDlBFloat && bits == 16) {
    view.kind = hooks::Kind::bf16;
  } else if (found.dtype.code == hooks::kDlFloat && (bits == 16 || bits == 32 || bits == 64)) {
    view.kind = bits == 16 ? hooks::Kind::f16 : bits == 32 ? hooks::Kind::f32 : hooks::Kind::f64;
  } else {
    return 0;
  }
  // What lies there may stand for its negative (`z.conj().imag`), of which the table says nothing.
  if (may_be_negated) {
    PyObject* const negated = PyObject_CallFunctionObjArgs(is_negated, object, nullptr);
    if (negated != Py_False) {
      Py_XDECREF(negated);
      return negated ? 0 : -1;
    }
    Py_DECREF(negated);
  }
  view.lay_out(found.shape, found.strides, found.ndim);
  if (!found.data && view.numel != 0) return 0;  // zeros of autograd that were never written anywhere
  view.data = static_cast<const char*>(found.data) + found.byte_offset;
  return 1;
}

// How many threads torch would use: a DataLoader's worker, for one, has a single one.
unsigned threads_for(std::int64_t elements) {
  if (elements < hooks::kWorthThreads) return 1;
  PyObject* const number = PyObject_CallNoArgs(thread_number);
  const long known = number ? PyLong_AsLong(number) : -1;
  Py_XDECREF(number);
  PyErr_Clear();
  return known > 1 ? static_cast<unsigned>(known) : 1;
}

// False with a Python error set.
bool measure(const View* views, std::size_t many, Row* rows, double* histograms) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < many; ++i) elements += views[i].numel;
  const unsigned threads = threads_for(elements);
  PyThreadState* const released = elements < kWorthRelease ? nullptr : PyEval_SaveThread();
  bool enough = true;
  try {
    hooks::measure(views, many, rows, histograms, threads);
  } catch (const std::exception&) {
    enough = false;
  }
  if (released) PyEval_RestoreThread(released);
  if (!enough) PyErr_NoMemory();
  return enough;
}

PyObject* bytes_of(const void* data, std::size_t size) {
  return PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(size));
}

PyObject* py_measure(PyObject*, PyObject* tensor) {
  View view;
  const int found = look(tensor, view);
  if (found < 0) return nullptr;
  if (found == 0) Py_RETURN_NONE;
  Row row;
  if (!measure(&view, 1, &row, nullptr)) return nullptr;
  return bytes_of(&row, sizeof row);
}

PyObject* py_measure_histogram(PyObject*, PyObject* tensor) {
  View view;
  const int found = look(tensor, view);
  if (found < 0) return nullptr;
  if (found == 0) Py_RETURN_NONE;
  Row row;
  double buckets[hooks::kBuckets];
  if (!measure(&view, 1, &row, buckets)) return nullptr;
  PyObject* const moments = bytes_of(&row, sizeof row);
  PyObject* const counts = bytes_of(buckets, sizeof buckets);
  PyObject* const both = moments && counts ? PyTuple_Pack(2, moments, counts) : nullptr;
  Py_XDECREF(moments);
  Py_XDECREF(counts);
  return both;
}

PyObject* py_measure_many(PyObject*, PyObject* tensors) {
  PyObject* const kept = PySequence_Tuple(tensors);  // holds them while the lock is released
  if (!kept) return nullptr;
  const Py_ssize_t many = PyTuple_Size(kept);
  std::vector<View> views;
  std::vector<Row> rows;
  std::vector<bool> measured;
  int found = 0;
  for (Py_ssize_t i = 0; i < many && found >= 0; ++i) {
    View view;
    found = look(PyTuple_GetItem(kept, i), view);
    measured.push_back(found == 1);
    if (found == 1) views.push_back(std::move(view));
  }
  rows.resize(views.size());
  PyObject* out = found >= 0 && measure(views.data(), views.size(), rows.data(), nullptr) ? PyList_New(many) : nullptr;
  const Row* row = rows.data();
  for (Py_ssize_t i = 0; i < many && out; ++i) {
    PyObject* item = Py_None;
    if (measured[static_cast<std::size_t>(i)]) {
      item = bytes_of(row++, sizeof(Row));
    } else {
      Py_INCREF(item);
    }
    if (!item || PyList_SetItem(out, i, item) != 0) {
      Py_DECREF(out);
      out = nullptr;
    }
  }
  Py_DECREF(kept);
  return out;
}

// The numbers first to first + many of a state; null with a Python error set.
double* numbers_of(const View& state, PyObject* first, std::size_t many) {
  const Py_ssize_t begin = PyLong_AsSsize_t(first);
  if (begin == -1 && PyErr_Occurred()) return nullptr;
  if (state.kind != hooks::Kind::f64 || !state.gaps.empty() || state.copies != 1) {
    PyErr_SetString(PyExc_TypeError, "the state must be a contiguous float64 tensor");
    return nullptr;
  }
  if (begin < 0 || begin + static_cast<std::int64_t>(many) > state.numel) {
    PyErr_SetString(PyExc_IndexError, "outside of the state");
    return nullptr;
  }
  return reinterpret_cast<double*>(const_cast<char*>(state.data)) + begin;
}

void join_moments(double* numbers, const void* from) {
  Row into, other;
  std::memcpy(static_cast<void*>(&into), numbers, sizeof into);
  std::memcpy(static_cast<void*>(&other), from, sizeof other);
  hooks::merge(into, other);
  std::memcpy(numbers, &into, sizeof into);
}

void join_counts(double* numbers, const void* from) {
  const char* bytes = static_cast<const char*>(from);
  for (int i = 0; i < hooks::kBuckets; ++i) {
    double count;
    std::memcpy(&count, bytes + i * sizeof count, sizeof count);
    numbers[i] += count;
  }
}

// Arguments: state, place of the row, place of its histogram or None, tensor, whether to join what is there or take its place.
PyObject* py_measure_into(PyObject*, PyObject* const* args, Py_ssize_t given) {
  if (given != 5) {
    PyErr_SetString(PyExc_TypeError, "expected the state, two places in it, the tensor, and whether to merge");
    return nullptr;
  }
  View state, view;
  int found = look(args[0], state, false);
  if (found > 0) found = look(args[3], view);
  if (found < 0) return nullptr;
  if (found == 0) Py_RETURN_FALSE;
  double* const numbers = numbers_of(state, args[1], hooks::kMoments);
  double* const counts = numbers && args[2] != Py_None ? numbers_of(state, args[2], hooks::kBuckets) : nullptr;
  if (!numbers || (args[2] != Py_None && !counts)) return nullptr;
  Row row;
  double buckets[hooks::kBuckets];
  if (!measure(&view, 1, &row, counts ? buckets : nullptr)) return nullptr;
  const bool merging = args[4] == Py_True;
  if (merging) {
    join_moments(numbers, &row);
    if (counts) join_counts(counts, buckets);
  } else {
    std::memcpy(numbers, &row, sizeof row);
    if (counts) std::memcpy(counts, buckets, sizeof buckets);
  }
  Py_RETURN_TRUE;
}

// Arguments of the two below: state, place of the first number, bytes, whether to join what is there or to take its place.
PyObject* put(PyObject* const* args, Py_ssize_t given, std::size_t wanted, void (*join)(double*, const void*)) {
  if (given != 4) {
    PyErr_SetString(PyExc_TypeError, "expected the state, a place in it, bytes, and whether to merge");
    return nullptr;
  }
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(args[2], &bytes, &size) != 0) return nullptr;
  if (static_cast<std::size_t>(size) != wanted) {
    PyErr_Format(PyExc_ValueError, "expected %zu bytes and got %zd", wanted, size);
    return nullptr;
  }
  View state;
  const int found = look(args[0], state, false);
  if (found < 0) return nullptr;
  if (found == 0) {
    PyErr_SetString(PyExc_TypeError, "the state must be a tensor in the memory of this machine");
    return nullptr;
  }
  double* const numbers = numbers_of(state, args[1], wanted / sizeof(double));
  if (!numbers) return nullptr;
  if (args[3] == Py_True) {
    join(numbers, bytes);
  } else {
    std::memcpy(numbers, bytes, wanted);
  }
  Py_RETURN_NONE;
}

PyObject* py_put_moments(PyObject*, PyObject* const* args, Py_ssize_t given) {
  return put(args, given, sizeof(Row), join_moments);
}

// Arguments: state, a list of places, a list of as many bytes.
PyObject* py_put_many(PyObject*, PyObject* const* args, Py_ssize_t given) {
  const Py_ssize_t many = given == 3 ? PyList_Size(args[1]) : -1;
  if (many < 0 || PyList_Size(args[2]) != many) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "expected the state and two lists of one length");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < many; ++i) {
    PyObject* const one[] = {args[0], PyList_GetItem(args[1], i), PyList_GetItem(args[2], i), Py_False};
    PyObject* const done = put(one, 4, sizeof(Row), join_moments);
    if (!done) return nullptr;
    Py_DECREF(done);
  }
  Py_RETURN_NONE;
}

PyObject* py_put_histogram(PyObject*, PyObject* const* args, Py_ssize_t given) {
  return put(args, given, hooks::kBuckets * sizeof(double), join_counts);
}

PyObject* py_instructions(PyObject*, PyObject*) { return PyUnicode_FromString(hooks::blocks().name); }

PyObject* py_choose_instructions(PyObject*, PyObject* name) {
  PyObject* const bytes = PyUnicode_AsUTF8String(name);
  const char* const text = bytes ? PyBytes_AsString(bytes) : nullptr;
  if (!text) return nullptr;
  const bool found = hooks::choose_blocks(text);
  Py_DECREF(bytes);
  return PyBool_FromLong(found);
}

PyObject* py_setup(PyObject*, PyObject* args) {
  PyObject *tensor, *parameter, *negated, *capsule, *number;
  if (!PyArg_ParseTuple(args, "OOOOO:setup", &tensor, &parameter, &negated, &capsule, &number)) return nullptr;
  auto* table = static_cast<const hooks::DlExchange*>(PyCapsule_GetPointer(capsule, hooks::kDlCapsule));
  if (!table) return nullptr;
  while (table && table->version.major != hooks::kDlMajor) table = table->older;
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
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"setup", py_setup, METH_VARARGS, "Tensor types, `is_neg`, exchange table, number of threads."},
    {"instructions", py_instructions, METH_NOARGS, "The instruction set in use."},
    {"choose_instructions", py_choose_instructions, METH_O, "Take another set, for tests; False where it does not run here."},
    {"measure", py_measure, METH_O, "The moments of a tensor as bytes, or None for one that is not measured here."},
    {"measure_histogram", py_measure_histogram, METH_O, "Moments and histogram of a tensor as bytes, or None."},
    {"measure_many", py_measure_many, METH_O, "A list of what `measure` gives, read together."},
    {"measure_into", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(py_measure_into)), METH_FASTCALL,
     "Measure a tensor into a state; False, and nothing written, where it is not measured here."},
    {"put_moments", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(py_put_moments)), METH_FASTCALL,
     "Write moments into a state, or merge them."},
    {"put_many", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(py_put_many)), METH_FASTCALL,
     "Write several rows of moments into a state."},
    {"put_histogram", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(py_put_histogram)), METH_FASTCALL,
     "Write a histogram into a state, or add it."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "The native kernel.", -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&definition); }
