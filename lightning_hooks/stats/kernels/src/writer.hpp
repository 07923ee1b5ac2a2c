// A writer: merges the tensors of one tap into its row.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Arguments: a table with its `state` and whether `magnitudes` are asked of it; the place of the row in the state; that of its
// histogram, or None; an owner, whose `direct` says at every call whether tensors may be written so; what else to call.
PyObject* py_writer(PyObject*, PyObject* args);

// Makes the type; false with a Python error set.
bool add_writer_type();

}  // namespace hooks
