// The records of an event file.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Argument: bytes. Gives the record that holds them: their length, and a checksum of that and of them.
PyObject* py_record(PyObject*, PyObject* data);

// Arguments: seconds since 1970, the step, a serialized summary. Gives a serialized event.
PyObject* py_event(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
