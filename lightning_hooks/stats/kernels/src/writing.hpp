// Writing into the state of a table: a flat float64 tensor of rows and histograms.
#pragma once

#include "tensor.hpp"

namespace hooks {

// What each takes is said where it is written.
PyObject* py_measure_into(PyObject*, PyObject* const* args, Py_ssize_t given);
PyObject* py_writer(PyObject*, PyObject* args);
PyObject* py_measure_many_into(PyObject*, PyObject* const* args, Py_ssize_t given);
PyObject* py_put_moments(PyObject*, PyObject* const* args, Py_ssize_t given);
PyObject* py_put_many(PyObject*, PyObject* const* args, Py_ssize_t given);
PyObject* py_put_histogram(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
