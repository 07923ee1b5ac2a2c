// Tensors of Python as views of memory, and their measurement with or without the interpreter lock. Of torch this knows only
// the DLPack exchange table.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cstddef>
#include <exception>

#include "measure.hpp"

namespace hooks {

// Arguments: the types of tensors, `is_neg`, the exchange table, the number of threads, the path of torch's OpenMP library or
// None. Before anything else.
PyObject* py_setup_kernel(PyObject*, PyObject* args);

// 1: the view is laid out. 0: not a plain tensor in the memory of this machine, or a type of number that is not measured
// here. -1: a Python error is set.
int look(PyObject* object, View& view, bool may_be_negated = true);

// As `look`, for the differences of two tensors of one type and layout without gaps; 0 for any others.
int look_at_difference(PyObject* left, PyObject* right, View& view);

// How many threads torch would use for so many elements: a DataLoader's worker, for one, has a single one.
unsigned threads_for(std::int64_t elements);

// Fewer elements than this are read under the interpreter lock: getting it back may take longer than the reading.
constexpr std::int64_t kWorthRelease = 1 << 19;

// Calls work(threads), without the interpreter lock where that is worth it. False with a Python error set.
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

// Rows of `many` views, and the histograms of those that want one. False with a Python error set.
bool measure_views(const View* views, std::size_t many, Row* rows);

}  // namespace hooks
