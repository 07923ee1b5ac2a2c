// Copies of tensors in memory that is there already, made by several threads.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Arguments: a list of tensors to copy into, a list of as many to copy from. Gives the positions of those that are not copied
// here: not measured here, or not of one type and layout.
PyObject* py_copy_many(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
