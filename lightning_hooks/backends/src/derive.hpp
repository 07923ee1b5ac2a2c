// Statistics from rows of moments.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Arguments: moments float64 [rows, 9]; members of unions of rows, int32; where each union begins in these, int64; where to put
// the moments of unions, float64 [unions, 9]; a letter for each statistic; what is wanted, int32 [runs, 2]: the first place and the
// length of each run of neighbours in a table [statistics + 1, rows + unions], whose last line has the counts; where to put that,
// float64. True where every row and union has elements.
PyObject* py_derive(PyObject*, PyObject* const* args, Py_ssize_t given);

}  // namespace hooks
