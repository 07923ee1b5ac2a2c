// The partial rows of tensors on a device that were measured by hooks and wait to be merged into the rows of a table.
#pragma once

#include "device.hpp"

namespace hooks {

// Launches the measurement of a tensor whose row begins at an offset of the state, without the interpreter. Returns false without a
// Python error if nothing was launched and Python must take the tensor. `rows` is a DeviceRows.
bool launch_on_device(PyObject* rows, std::int64_t offset, PyObject* tensor);

PyTypeObject* device_rows_type();
// Creates the type. Returns false with a Python error set.
bool make_device_rows_type();

}  // namespace hooks
