#include "device_writer.hpp"

#include <chrono>
#include <climits>
#include <initializer_list>

#include "device_launch.hpp"
#include "device_rows.hpp"
#include "trail.hpp"
#include "writer.hpp"

namespace hooks {
namespace {

PyObject* device_writer_type = nullptr;
PyObject* overwritten_name = nullptr;

// Stand for the axis of a row that keeps no units, and of a row whose axis no tensor has determined yet.
constexpr short kNoUnits = SHRT_MIN, kNoAxis = SHRT_MIN + 1;

struct DeviceWriter {
  static constexpr int kFields = 6;
  PyObject_HEAD
  PyObject *rows, *owner, *python, *fallback;
  PyObject *units, *axes;  // null for a row that keeps no units
  long long offset;
  int row;
  short axis;
};

using Clock = std::chrono::steady_clock;

// Calls the function in Python that measures a tensor. Returns 1 if it did, 0 if the fallback must take the tensor, and -1 with a Python
// error set that is no Exception, such as an interruption.
int measure_in_python(const DeviceWriter* writer, PyObject* tensor) {
  PyObject* const answer = PyObject_CallFunctionObjArgs(writer->python, tensor, nullptr);
  const int written = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  if (written >= 0) return written;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  // Ignore the error: the fallback measures the same tensor, and handles the error there.
  PyErr_Clear();
  return 0;
}

// Looks up the axis of the units of the row, which never changes once the first tensor has determined it.
short axis_of(DeviceWriter* writer) {
  if (writer->axis != kNoAxis) return writer->axis;
  PyObject* const row = PyLong_FromLong(writer->row);
  PyObject* const axis = row ? PyDict_GetItemWithError(writer->axes, row) : nullptr;
  Py_XDECREF(row);
  const long number = axis ? PyLong_AsLong(axis) : kNoAxis;
  PyErr_Clear();
  if (number > kNoAxis && number <= SHRT_MAX) writer->axis = static_cast<short>(number);
  return writer->axis;
}

// As `launch_on_device`.
int launch_row(DeviceWriter* writer, PyObject* tensor, Moment moment) {
  Queue& queue = queue_of(writer->rows);
  if (writer->axis == kNoUnits) return launch_on_device(queue, reinterpret_cast<PyObject*>(writer), writer->offset, tensor, moment);
  const short axis = axis_of(writer);
  PyObject* const units = axis == kNoAxis ? nullptr : PyList_GetItem(writer->units, writer->row);
  if (!units) {
    PyErr_Clear();
    return 0;
  }
  // Hold a reference: other threads may replace the item of the list while the interpreter lock is released.
  Py_INCREF(units);
  const int launched = launch_with_units(queue, writer->offset, units, axis, tensor, moment);
  Py_DECREF(units);
  return launched;
}

// As `write_on_device`.
int write_row(DeviceWriter* writer, PyObject* tensor, Moment moment) {
  FallbackWriter* const fallback = reinterpret_cast<FallbackWriter*>(writer->fallback);
  if (!fallback->direct) return fall_back(writer->fallback, writer->row, tensor);
  const auto begun = Clock::now();
  int written = launch_row(writer, tensor, moment);
  if (written == 0) written = measure_in_python(writer, tensor);
  if (written < 0) return -1;
  if (!written) return fall_back(writer->fallback, writer->row, tensor);
  if (fallback->trail && is_trail(fallback->trail)) note_order(fallback->trail, writer->row);
  fallback->nanoseconds += std::chrono::nanoseconds(Clock::now() - begun).count();
  ++fallback->calls;
  return 0;
}

PyObject* call(PyObject* self, PyObject* args, PyObject*) {
  if (PyTuple_Size(args) != 1) return PyErr_Format(PyExc_TypeError, "expected the tensor");
  if (write_on_device(self, PyTuple_GetItem(args, 0), Moment::at_once) != 0) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace

bool is_device_writer(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == device_writer_type; }

int write_on_device(PyObject* self, PyObject* tensor, Moment moment) {
  // Another thread may remove the hook that owns the writer while the interpreter lock is released.
  Py_INCREF(self);
  const int result = write_row(reinterpret_cast<DeviceWriter*>(self), tensor, moment);
  Py_DECREF(self);
  return result;
}

bool write_in_python(PyObject* self, PyObject* tensor) {
  const DeviceWriter* const writer = reinterpret_cast<DeviceWriter*>(self);
  const int written = measure_in_python(writer, tensor);
  if (written != 0) return written > 0;
  // The hook has counted and noted the tensor.
  FallbackWriter* const fallback = reinterpret_cast<FallbackWriter*>(writer->fallback);
  PyObject* const trail = fallback->trail;
  fallback->trail = nullptr;
  --fallback->calls;
  const int result = fall_back(writer->fallback, writer->row, tensor);
  PyObject* const other = fallback->trail;
  fallback->trail = trail;
  Py_XDECREF(other);
  return result == 0;
}

bool tell_overwritten(PyObject* self) {
  const DeviceWriter* const writer = reinterpret_cast<DeviceWriter*>(self);
  PyObject* const offset = PyLong_FromLongLong(writer->offset);
  PyObject* const result = offset ? PyObject_CallMethodObjArgs(writer->owner, overwritten_name, offset, nullptr) : nullptr;
  Py_XDECREF(offset);
  Py_XDECREF(result);
  return result != nullptr;
}

PyObject* py_device_writer(PyObject*, PyObject* args) {
  PyObject *rows, *owner, *python, *fallback, *units = nullptr, *axes = nullptr;
  int row;
  long long offset;
  if (!PyArg_ParseTuple(args, "O!iLOOO!|O!O!:device_writer", device_rows_type(), &rows, &row, &offset, &owner, &python,
                        fallback_writer_type(), &fallback, &PyList_Type, &units, &PyDict_Type, &axes))
    return nullptr;
  if (!units != !axes) return PyErr_Format(PyExc_TypeError, "expected the units of rows and their axes, or neither");
  auto* const type = reinterpret_cast<PyTypeObject*>(device_writer_type);
  PyObject* const made = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (!made) return nullptr;
  DeviceWriter* const writer = reinterpret_cast<DeviceWriter*>(made);
  for (PyObject* kept : {rows, owner, python, fallback, units, axes}) Py_XINCREF(kept);
  writer->rows = rows;
  writer->owner = owner;
  writer->python = python;
  writer->fallback = fallback;
  writer->units = units;
  writer->axes = axes;
  writer->offset = offset;
  writer->row = row;
  writer->axis = units ? kNoAxis : kNoUnits;
  return made;
}

bool make_device_types() {
  static PyType_Slot slots[] = {{Py_tp_call, slot_of(call)},
                                {Py_tp_traverse, slot_of(traverse<DeviceWriter>)},
                                {Py_tp_clear, slot_of(clear<DeviceWriter>)},
                                {Py_tp_dealloc, slot_of(destroy<DeviceWriter>)},
                                {0, nullptr}};
  static PyType_Spec spec = {"lightning_hooks.backends._native.DeviceWriter", sizeof(DeviceWriter), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  overwritten_name = PyUnicode_InternFromString("overwritten");
  device_writer_type = PyType_FromSpec(&spec);
  return device_writer_type && make_device_rows_type();
}

bool add_device_types(PyObject* module) {
  return PyModule_AddObjectRef(module, "DeviceWriter", device_writer_type) == 0 &&
         PyModule_AddObjectRef(module, "DeviceRows", reinterpret_cast<PyObject*>(device_rows_type())) == 0;
}

}  // namespace hooks
