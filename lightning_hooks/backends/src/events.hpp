// The bytes of event files.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Argument: bytes. Gives the record that holds them: their length, and a checksum of that and of them.
PyObject* py_record(PyObject*, PyObject* data);

// Arguments: a writable buffer; int64 triples (first byte of the slots, first of the numbers, how many of them); float64
// numbers, each of which goes into its slot as a little-endian float32.
PyObject* py_fill_floats(PyObject*, PyObject* const* args, Py_ssize_t given);

// Arguments: a sequence of tags; float64 counts [tags, buckets]; float64 right edges, ascending [buckets]. Gives a serialized
// summary: of each histogram the occupied buckets, and one for each gap between them.
PyObject* py_draw(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
