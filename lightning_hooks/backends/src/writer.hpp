// Writers: callables that merge tensors into one row of a table, or into several rows with one measurement.
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
// The same for a shared writer, which measures a tensor once for several rows. It is constructed from a tuple with the writer of each
// row, or None for a row that only Python can write, and a function of Python that writes the rows that the writers did not. The
// function gets the positions of these rows in the tuple, the tensor, and its moments as bytes, or None if it was not measured.
bool is_shared_writer(PyObject* object);
int write_shared(PyObject* shared, PyObject* tensor);

// Create the types of writer.cpp, and add them to the module. Both return false with a Python error set.
bool make_writer_types();
bool add_writer_types(PyObject* module);

}  // namespace hooks
