// Histograms as TensorBoard's messages.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Arguments: a sequence of tags; float64 counts [tags, buckets]; float64 right edges, ascending [buckets]. Gives a serialized
// summary: of each histogram the occupied buckets, and one for each gap between them.
PyObject* py_draw(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
