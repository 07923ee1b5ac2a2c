// Writing into the state of a table: a flat float64 tensor of rows and histograms.
#pragma once

#include "tensor.hpp"

namespace hooks {

constexpr Py_ssize_t kNoHistogram = PY_SSIZE_T_MIN;  // no valid offset

// A row of a state and, unless its offset is kNoHistogram, a histogram.
struct Target {
  PyObject* state;
  Py_ssize_t first, histogram;
  bool sized;            // whether the sum of magnitudes is requested
  bool written = false;  // whether `measure_into` has written the row
  double *moments = nullptr, *counts = nullptr;
};

// Measures a tensor once and merges it into several rows; rows whose state cannot be written are skipped. 1: the tensor was measured,
// and the row has its moments. 0: the tensor is not measured here. -1: a Python error is set.
int measure_into(Target* targets, std::size_t many, PyObject* tensor, bool sized, Row& row);

// The same, and the units along an axis are merged into a contiguous float64 tensor [units, 4]. 0 also where the number of units
// is another one, or their layout is not measured here.
int measure_units_into(PyObject* state, Py_ssize_t first, Py_ssize_t histogram, PyObject* tensor, bool sized, PyObject* units,
                       Py_ssize_t axis);

// The arguments are documented at the definitions.
PyObject* py_copy_many(PyObject*, PyObject* const* args, Py_ssize_t given);
PyObject* py_measure_many_into(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
