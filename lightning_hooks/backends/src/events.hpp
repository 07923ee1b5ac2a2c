// Functions for Python that encode the bytes of event files.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Argument: bytes. Returns the record that holds the bytes: their length and its checksum, the bytes, and their checksum.
PyObject* py_record(PyObject*, PyObject* data);

// Arguments: a writable buffer; int64 triples (first byte in the buffer, index of the first number, count); float64 numbers. Writes
// the numbers of each triple as little-endian float32.
PyObject* py_fill_floats(PyObject*, PyObject* const* args, Py_ssize_t given);

// Arguments: a sequence of tags; float64 counts [tags, buckets]; float64 right edges, ascending [buckets]. Returns a serialized
// summary with the occupied buckets of each histogram, and one empty bucket for each gap between them.
PyObject* py_draw(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
