// Tables of integers for kernels that take many tensors or spans.
#pragma once

#include "device.hpp"

namespace hooks {

// Arguments: a list of tensors; a list of tensors to subtract, or None; an int64 buffer with the offset of the row of each tensor in the
// state; the type and the index of the device; the elements of a block, the programs of a launch, and the most blocks of a span. Returns
//   - the positions of the tensors, or of the pairs, that Python must look at;
//   - for each type of the others its code, the table of `measure_list` in triton_code.py as packed int64 numbers, the number of tensors,
//     the blocks of a span and the number of programs;
//   - the table of `merge_rows` for all of them, as packed int64 numbers, the number of rows in it, and that of segments.
PyObject* py_list_tables(PyObject*, PyObject* args);

// Argument: spans, packed int64 numbers [spans, 4]: the offset of a row in the state, a number of elements, the first partial row and the
// end. Returns the table of `merge_rows` in triton_merge.py, as packed int64 numbers, and the number of rows in it.
PyObject* py_merge_table(PyObject*, PyObject* spans);

}  // namespace hooks
