// Views of the memory of Python tensors, and measurements of the views with or without the interpreter lock. The only interface to
// torch is the DLPack exchange table.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cstddef>
#include <exception>

#include "dlpack.hpp"
#include "measure.hpp"
#include "units.hpp"

namespace hooks {

// Arguments: `Tensor`, `Parameter`, `Tensor.is_neg`, the exchange table, `torch.get_num_threads`, the path of torch's OpenMP library
// or None. Must be called before any other function of the kernel.
PyObject* py_setup_kernel(PyObject*, PyObject* args);

// Fills in the view of a tensor. Returns 1 on success, 0 if the object is not a plain tensor in host memory or has a dtype that the
// kernel does not measure, and -1 with a Python error set.
int view_of(PyObject* object, View& view, bool may_be_negated = true);

// As `view_of`, for the differences of two tensors. Returns 0 also if their types or layouts differ or a layout has gaps.
int view_of_difference(PyObject* left, PyObject* right, View& view);

// As `view_of`, with the layout of the units along an axis; a negative axis counts from the end. Returns 0 also if the tensor has no
// such axis, or if its memory has gaps or repeats elements.
int view_of_units(PyObject* object, Py_ssize_t axis, View& view, UnitLayout& layout);

// Sets the layout of the units along an axis of a tensor with so many elements, whose memory has no gaps and repeats none. Returns false
// if the tensor has no such axis.
bool lay_out_units(const DlTensor& tensor, std::int64_t numel, Py_ssize_t axis, UnitLayout& layout);

// The exchange table of torch, for files that read tensors outside of host memory.
const DlExchange* exchange_table();

// As `tensor_from_object` of the exchange table, for objects whose type is `Tensor` or `Parameter` itself. Returns false without a
// Python error for other objects, and for tensors without strided memory.
bool describe(PyObject* object, DlTensor& found);

bool is_parameter(PyObject* object);

// Whether the memory of a tensor holds the negatives of its elements. Returns -1 with a Python error set.
int is_negative_view(PyObject* object);

// The number of threads to use for this number of elements: at most as many as torch uses, which is one in a DataLoader's worker.
unsigned threads_for(std::int64_t elements);

// For fewer elements `unlocked` keeps the interpreter lock: acquiring the lock again may take longer than reading the elements.
constexpr std::int64_t kWorthRelease = 1 << 19;

// Calls work(threads), without the interpreter lock if there are enough elements. If `work` throws, which only a lack of memory makes
// it do, returns false with a Python error set.
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

// Call `measure` and `measure_units` by means of `unlocked`. Both return false with a Python error set.
bool measure_views(const View* views, std::size_t many, RowMoments* rows);
bool measure_view_of_units(const View& view, const UnitLayout& layout, RowMoments& row, double* units);

}  // namespace hooks
