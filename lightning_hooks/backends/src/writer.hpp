// Writers: callables that merge tensors into a row of a table.
#pragma once

#include "tensor.hpp"

namespace hooks {

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
