// Writers: callables that merge tensors into a row of a table.
#pragma once

#include "tensor.hpp"

namespace hooks {

// The base class of fallbacks, which take the tensors that writers do not write. Every call of a writer reads `direct`, and a C++
// field is faster than a Python attribute. `calls` and `nanoseconds` count the tensors that writers wrote and the time that this
// took. `trail` is a trail that notes what the writers measure, or only their order, or None, or null.
struct FallbackWriter {
  static constexpr int kFields = 1;
  PyObject_HEAD
  PyObject* trail;
  char direct;
  long long nanoseconds, calls;
};

// Calls a fallback with a row and a tensor. Returns 0, or -1 with a Python error set.
int fall_back(PyObject* fallback, int row, PyObject* tensor);

// The type `FallbackWriter`.
PyTypeObject* fallback_writer_type();

// Arguments: a table with its `state` and whether `magnitudes` are requested of it; the row; the offset of its histogram in the
// state, or None; a FallbackWriter, whose `direct` says at every call whether the writer may write, and which is called with the
// row and the tensor if the writer may not or cannot; and the axis of units, or None. With an axis the table also has `units`, a
// list of a float64 tensor [units, 4] for each row, or None: a tensor whose units do not fit goes to the fallback.
PyObject* py_writer(PyObject*, PyObject* args);

// `is_writer` tells whether an object is a writer. `write` calls a writer without the interpreter and returns 0, or -1 with a Python
// error set.
bool is_writer(PyObject* object);
int write(PyObject* writer, PyObject* tensor);

// Create the types of writer.cpp, and add them to the module. Both return false with a Python error set.
bool make_writer_types();
bool add_writer_types(PyObject* module);

}  // namespace hooks
