// Measurements of tensors from hooks, launched without the interpreter. Each function returns 1 if the measurement was launched, or will be;
// 0 if Python must measure the tensor, of which nothing is merged then; and -1 with a Python error set, which a tensor may cause that
// waited.
#pragma once

#include "device_queue.hpp"

namespace hooks {

// Measures a tensor whose row begins at an offset of the state, or takes the tensor to measure it late. `writer` is the DeviceWriter of the
// row, or null if `moment` is at_once.
int launch_on_device(Queue& queue, PyObject* writer, std::int64_t offset, PyObject* tensor, Moment moment);

// Measures a tensor in two launches, of which the second counts its elements into the histogram at an address.
int launch_counted(Queue& queue, std::int64_t offset, std::int64_t histogram, PyObject* tensor);

// Measures a tensor in three launches, of which the last merges its units along an axis into a tensor float64 [units, 4].
int launch_with_units(Queue& queue, std::int64_t offset, PyObject* units, Py_ssize_t axis, PyObject* tensor, Moment moment);

}  // namespace hooks
