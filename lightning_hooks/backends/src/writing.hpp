// Writing into the state of a table: a flat float64 tensor of rows and histograms.
#pragma once

#include "tensor.hpp"

namespace hooks {

constexpr Py_ssize_t kNoHistogram = PY_SSIZE_T_MIN;  // no place that anybody could give

// Measures a tensor into a row and, unless its place is kNoHistogram, a histogram of a state, or merges it with what is there.
// 1: done. 0: the tensor is not measured here. -1: a Python error is set.
int measure_into(PyObject* state, Py_ssize_t first, Py_ssize_t histogram, PyObject* tensor, bool merging, bool sized);

// The place of a histogram in a state, kNoHistogram for None. False with a Python error set.
bool read_offset(PyObject* number, Py_ssize_t& offset);

// What each takes is said where it is written.
PyObject* py_copy_many(PyObject*, PyObject* const* args, Py_ssize_t given);
PyObject* py_measure_into(PyObject*, PyObject* const* args, Py_ssize_t given);
PyObject* py_measure_many_into(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
