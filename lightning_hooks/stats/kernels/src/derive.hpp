// Statistics from rows of moments.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Arguments: moments [rows, 9], members of unions of rows, where each union begins in these, a letter for each statistic,
// and the place of the result [statistics + 1, rows + unions], whose last line takes the counts. Buffers of float64 and int64.
PyObject* py_derive(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
