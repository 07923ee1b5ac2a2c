// Numbers into the float slots of a serialized message.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Arguments: a writable buffer; int64 triples (first byte of the slots, first of the numbers, how many of them); float64
// numbers, each of which goes into its slot as a little-endian float32.
PyObject* py_fill_floats(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
