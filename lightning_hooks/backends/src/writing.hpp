// Writing into the state of a table: a flat float64 tensor of rows and histograms.
#pragma once

#include "tensor.hpp"

namespace hooks {

constexpr Py_ssize_t kNoHistogram = PY_SSIZE_T_MIN;  // stands for a row without a histogram; is not a valid offset

// Returns a pointer to the numbers [begin, begin + many) of a state, or null with a Python error set.
double* numbers_of(const View& state, Py_ssize_t begin, std::size_t many);

// Measures a tensor and merges it into the row that begins at the offset `first` of a state, and into the row's histogram at the
// offset `histogram` or kNoHistogram. `sized` says whether the sum of magnitudes is requested. Returns 1 if the row was written, and
// `row` has the moments of the tensor; 0 if the kernel does not read the tensor or the state; -1 with a Python error set.
int measure_into(PyObject* state, Py_ssize_t first, Py_ssize_t histogram, PyObject* tensor, bool sized, RowMoments& row);

// As `measure_into`, and merges the units along an axis into a contiguous float64 tensor [units, 4]. Returns 0 also if the number of
// units differs, or if the layout of the tensor has gaps.
int measure_units_into(PyObject* state, Py_ssize_t first, Py_ssize_t histogram, PyObject* tensor, bool sized, PyObject* units,
                       Py_ssize_t axis, RowMoments& row);

// The arguments are documented at the definitions.
PyObject* py_compare_many(PyObject*, PyObject* const* args, Py_ssize_t given);
PyObject* py_copy_many(PyObject*, PyObject* const* args, Py_ssize_t given);
PyObject* py_measure_many_into(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
