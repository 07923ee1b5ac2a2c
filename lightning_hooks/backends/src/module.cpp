// The Python module `_native`. It uses only the stable C interface of Python, so that one binary serves every Python from 3.11 on.
#include "tensor.hpp"  // includes Python.h, which must precede the standard headers

#include <utility>
#include <vector>

#include "blocks.hpp"
#include "device_tables.hpp"
#include "device_writer.hpp"
#include "events.hpp"
#include "hooks.hpp"
#include "trail.hpp"
#include "writer.hpp"
#include "writing.hpp"

namespace {

using hooks::view_of;
using hooks::measure_views;
using hooks::RowMoments;
using hooks::View;

PyObject* bytes_of(const void* data, std::size_t size) {
  return PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(size));
}

PyObject* py_measure(PyObject*, PyObject* tensor) {
  View view;
  const int found = view_of(tensor, view);
  if (found < 0) return nullptr;
  if (found == 0) Py_RETURN_NONE;
  RowMoments row;
  if (!measure_views(&view, 1, &row)) return nullptr;
  return bytes_of(&row, hooks::kMomentBytes);
}

PyObject* py_measure_histogram(PyObject*, PyObject* tensor) {
  View view;
  const int found = view_of(tensor, view);
  if (found < 0) return nullptr;
  if (found == 0) Py_RETURN_NONE;
  RowMoments row;
  double buckets[hooks::kBuckets];
  view.counts = buckets;
  if (!measure_views(&view, 1, &row)) return nullptr;
  PyObject* const moments = bytes_of(&row, hooks::kMomentBytes);
  PyObject* const counts = bytes_of(buckets, sizeof buckets);
  PyObject* const both = moments && counts ? PyTuple_Pack(2, moments, counts) : nullptr;
  Py_XDECREF(moments);
  Py_XDECREF(counts);
  return both;
}

PyObject* py_measure_units(PyObject*, PyObject* args) {
  PyObject* tensor;
  Py_ssize_t axis;
  if (!PyArg_ParseTuple(args, "On:measure_units", &tensor, &axis)) return nullptr;
  View view;
  hooks::UnitLayout layout;
  const int found = hooks::view_of_units(tensor, axis, view, layout);
  if (found < 0) return nullptr;
  if (found == 0) Py_RETURN_NONE;
  RowMoments row;
  PyObject* const units = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(layout.units * hooks::kUnitColumns * sizeof(double)));
  // The storage of a bytes object may be written until the object is passed to other code.
  const bool measured = units && hooks::measure_view_of_units(view, layout, row, reinterpret_cast<double*>(PyBytes_AsString(units)));
  PyObject* const moments = measured ? bytes_of(&row, hooks::kMomentBytes) : nullptr;
  PyObject* const both = moments ? PyTuple_Pack(2, moments, units) : nullptr;
  Py_XDECREF(moments);
  Py_XDECREF(units);
  return both;
}

PyObject* py_measure_many(PyObject*, PyObject* tensors) {
  // The tuple keeps the tensors alive while the interpreter lock is released.
  PyObject* const kept = PySequence_Tuple(tensors);
  if (!kept) return nullptr;
  const Py_ssize_t many = PyTuple_Size(kept);
  std::vector<View> views;
  std::vector<RowMoments> rows;
  std::vector<bool> measured;
  int found = 0;
  for (Py_ssize_t i = 0; i < many && found >= 0; ++i) {
    View view;
    found = view_of(PyTuple_GetItem(kept, i), view);
    measured.push_back(found == 1);
    if (found == 1) views.push_back(std::move(view));
  }
  rows.resize(views.size());
  PyObject* out = found >= 0 && measure_views(views.data(), views.size(), rows.data()) ? PyList_New(many) : nullptr;
  const RowMoments* row = rows.data();
  for (Py_ssize_t i = 0; i < many && out; ++i) {
    PyObject* item = Py_None;
    if (measured[static_cast<std::size_t>(i)]) {
      item = bytes_of(row++, hooks::kMomentBytes);
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

PyObject* py_instructions(PyObject*, PyObject*) { return PyUnicode_FromString(hooks::blocks().name); }

PyObject* py_choose_instructions(PyObject*, PyObject* name) {
  PyObject* const bytes = PyUnicode_AsUTF8String(name);
  const char* const text = bytes ? PyBytes_AsString(bytes) : nullptr;
  if (!text) return nullptr;
  const bool found = hooks::choose_blocks(text);
  Py_DECREF(bytes);
  return PyBool_FromLong(found);
}

PyMethodDef methods[] = {
    {"setup_kernel", hooks::py_setup_kernel, METH_VARARGS, "Two tensor types, `is_neg`, exchange table, number of threads, OpenMP library or None."},
    {"instructions", py_instructions, METH_NOARGS, "The instruction set in use."},
    {"choose_instructions", py_choose_instructions, METH_O, "Choose another set, for tests; False where the processor does not support it."},
    {"measure", py_measure, METH_O, "The moments of a tensor as bytes, or None for one that is not measured here."},
    {"measure_histogram", py_measure_histogram, METH_O, "Moments and histogram of a tensor as bytes, or None."},
    {"measure_units", py_measure_units, METH_VARARGS, "Moments, and units along an axis, of a tensor as bytes; or None."},
    {"measure_many", py_measure_many, METH_O, "A list of the results of `measure`, computed together."},
    {"measure_many_into", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(hooks::py_measure_many_into)), METH_FASTCALL,
     "Measure tensors, or their differences from others, into rows of a state; the indices of those not measured here."},
    {"compare_many", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(hooks::py_compare_many)), METH_FASTCALL,
     "Write the sums of products and of squares of pairs of tensors into a state; the indices of those not compared here."},
    {"copy_many", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(hooks::py_copy_many)), METH_FASTCALL,
     "Copy tensors into others of the same type and layout; the indices of those not copied here."},
    {"writer", hooks::py_writer, METH_VARARGS, "A function that merges a tensor into a row of a table, directly or through its fallback."},
    {"device_writer", hooks::py_device_writer, METH_VARARGS, "A function that measures a tensor on a device for a row, directly, in Python or through its fallback."},
    {"list_tables", hooks::py_list_tables, METH_VARARGS, "The tables with which kernels measure lists of tensors, and merge the partial rows."},
    {"merge_table", hooks::py_merge_table, METH_O, "The table of `merge_rows` for spans, and the number of its rows."},
    {"record", hooks::py_record, METH_O, "The record of an event file that holds bytes."},
    {"fill_floats", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(hooks::py_fill_floats)), METH_FASTCALL,
     "Write numbers into the float fields of a buffer."},
    {"draw", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(hooks::py_draw)), METH_FASTCALL,
     "Histograms as a serialized summary."},
    {"place_hooks_in", hooks::py_place_hooks_in, METH_O, "Place tensor hooks into dictionaries of this type; None: register them."},
    {"setup_hooks", hooks::py_setup_hooks, METH_VARARGS,
     "Tensor type, number of the running backward, floating dtypes, whether autograd records, `has_gradient`."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "The compiled part: the kernel, hooks that only read, and event files.", -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  PyObject* const module = hooks::make_trail_type() && hooks::make_writer_types() && hooks::make_device_types() ? PyModule_Create(&definition) : nullptr;
  if (module && !(PyModule_AddStringConstant(module, "MOMENTS", hooks::kNames) == 0 && hooks::add_trail_type(module) && hooks::add_writer_types(module) && hooks::add_device_types(module) && hooks::add_hooks(module))) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
