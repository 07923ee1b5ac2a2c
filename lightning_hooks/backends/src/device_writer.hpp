// Device writers: callables that measure a tensor on a device for a row of a table.
#pragma once

#include "device_queue.hpp"
#include "hooks.hpp"

namespace hooks {

// Arguments: a DeviceRows; the index of the row; the offset of the row in the state; an object whose method `overwritten` is called with
// the offset if a tensor was overwritten before it was measured; a function (tensor) -> bool, which measures the
// tensors that are not launched directly, or returns False; and a FallbackWriter, whose `direct` says at every call whether the writer
// may measure, and which takes all other tensors. For a row that keeps units, further the list of the units of each row, tensors
// float64 [units, 4] or None, and the dictionary of the axis of the units by row. Until it has the row, tensors go to the function.
PyObject* py_device_writer(PyObject*, PyObject* args);

// `is_device_writer` tells whether an object is a device writer. `write_on_device` calls it without the interpreter and returns 0, or -1
// with a Python error set.
bool is_device_writer(PyObject* object);
int write_on_device(PyObject* writer, PyObject* tensor, Moment moment);

// For a tensor that was to be measured late: measures the tensor from Python, or tells Python that the tensor was overwritten. Both return
// false with a Python error set.
bool write_in_python(PyObject* writer, PyObject* tensor);
bool tell_overwritten(PyObject* writer);

// Create the types of device_rows.cpp and device_writer.cpp, and add them to the module. Both return false with a Python error set.
bool make_device_types();
bool add_device_types(PyObject* module);

}  // namespace hooks
