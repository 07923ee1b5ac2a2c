// The partial rows of tensors on a device that were measured by hooks and wait to be merged into the rows of a table.
#pragma once

#include "device_queue.hpp"

namespace hooks {

// Launches the measurement of a tensor whose row begins at an offset of the state, without the interpreter, or takes the tensor to measure
// it late. Returns 1 if it did; 0 if Python must take the tensor; and -1 with a Python error set, which a tensor may cause that waited.
// `rows` is a DeviceRows, and `writer` its DeviceWriter for the row, or null if `moment` is at_once.
int launch_on_device(PyObject* rows, PyObject* writer, std::int64_t offset, PyObject* tensor, Moment moment);

PyTypeObject* device_rows_type();
// Creates the type. Returns false with a Python error set.
bool make_device_rows_type();

}  // namespace hooks
