// A writer: merges the tensors of one tap into its row.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Arguments: a table with its `state` and whether `magnitudes` are asked of it; the row; the place of its histogram in the state,
// or None; a detour, whose `direct` says at every call whether tensors may be written so, and which is called with the row and a
// tensor in place of that.
PyObject* py_writer(PyObject*, PyObject* args);

// Whether an object is one, and what calling it does, without the interpreter: 0, or -1 with a Python error set.
bool is_writer(PyObject* object);
int write(PyObject* writer, PyObject* tensor);

// Makes the types, and adds that of detours; false with a Python error set.
bool make_writer_types();
bool add_way_type(PyObject* module);

}  // namespace hooks
