// Python tensors as views of memory, and their measurement with or without the interpreter lock. The only interface to torch is
// the DLPack exchange table.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cstddef>
#include <exception>

#include "measure.hpp"
#include "units.hpp"

namespace hooks {

// Arguments: the types of tensors, `is_neg`, the exchange table, the number of threads, the path of torch's OpenMP library or
// None. Must be called first.
PyObject* py_setup_kernel(PyObject*, PyObject* args);

// 1: the view is complete. 0: not a plain tensor in host memory, or a dtype that is not measured here. -1: a Python error is set.
int view_of(PyObject* object, View& view, bool may_be_negated = true);

// As `view_of`, for the differences of two tensors of one type and layout without gaps; 0 for any others.
int view_of_difference(PyObject* left, PyObject* right, View& view);

// As `view_of`, with the layout of the units along an axis, which counts from the end if it is negative; 0 also where the tensor has
// no such axis, and where its memory has gaps or repeats elements.
int view_of_units(PyObject* object, Py_ssize_t axis, View& view, UnitLayout& layout);

// The number of threads that torch would use for this number of elements; a DataLoader's worker has one.
unsigned threads_for(std::int64_t elements);

// With fewer elements than this the interpreter lock is kept: to acquire it again may take longer than the reading.
constexpr std::int64_t kWorthRelease = 1 << 19;

// Calls work(threads), without the interpreter lock where that pays. False with a Python error set.
template <class Work>
bool unlocked(std::int64_t elements, Work work) {
  const unsigned threads = threads_for(elements);
  PyThreadState* const released = elements < kWorthRelease ? nullptr : PyEval_SaveThread();
  bool enough = true;
  try {
    work(threads);
  } catch (const std::exception&) {
    enough = false;
  }
  if (released) PyEval_RestoreThread(released);
  if (!enough) PyErr_NoMemory();
  return enough;
}

// As `measure` and `measure_units`, for Python. False with a Python error set.
bool measure_views(const View* views, std::size_t many, Row* rows);
bool measure_view_of_units(const View& view, const UnitLayout& layout, Row& row, double* units);

}  // namespace hooks
