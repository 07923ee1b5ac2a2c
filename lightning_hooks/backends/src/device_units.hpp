// The units of a tensor on a device, in two launches: one measures parts of the tensor, and one merges the parts into the units of a row.
#pragma once

#include "device_queue.hpp"
#include "units.hpp"

namespace hooks {

// A tensor on a device, how its units lie in memory, and the address of the units of its row.
struct DeviceUnits {
  DeviceTensor tensor;
  UnitLayout layout;
  std::int64_t target;
};

// Looks up a tensor whose units along an axis are merged into a tensor float64 [units, 4]. Returns false without a Python error if Python
// must look at them: as `find_on_device`, another number of units, or no tensor in the place of the units.
bool find_units(PyObject* tensor, PyObject* units, Py_ssize_t axis, const Device& device, DeviceUnits& out);

// Whether the units can be launched on a stream: the kernels were loaded in a context, and the memory for parts is large enough, belongs
// to the stream, and is in use by no other thread.
bool can_launch_units(const Queue& queue, const DeviceUnits& found, void* context, void* stream);

// Launches both kernels on a stream. Returns false if the units of the row have not changed.
bool launch_units(Queue& queue, const DeviceUnits& found, void* context, void* stream);

// Methods of DeviceRows.
PyObject* py_set_unit_kernels(PyObject* self, PyObject* args);
PyObject* py_set_parts(PyObject* self, PyObject* args);

}  // namespace hooks
