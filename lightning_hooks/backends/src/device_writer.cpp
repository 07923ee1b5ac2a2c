#include "device_writer.hpp"

#include <chrono>
#include <initializer_list>

#include "device_rows.hpp"
#include "trail.hpp"
#include "writer.hpp"

namespace hooks {
namespace {

PyObject* device_writer_type = nullptr;
PyObject* overwritten_name = nullptr;

struct DeviceWriter {
  static constexpr int kFields = 4;
  PyObject_HEAD
  PyObject *rows, *owner, *python, *fallback;
  long long offset;
  int row;
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

// As `write_on_device`.
int write_row(DeviceWriter* writer, PyObject* tensor, Moment moment) {
  FallbackWriter* const fallback = reinterpret_cast<FallbackWriter*>(writer->fallback);
  if (!fallback->direct) return fall_back(writer->fallback, writer->row, tensor);
  const auto begun = Clock::now();
  int written = launch_on_device(writer->rows, reinterpret_cast<PyObject*>(writer), writer->offset, tensor, moment);
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
  PyObject *rows, *owner, *python, *fallback;
  int row;
  long long offset;
  if (!PyArg_ParseTuple(args, "O!iLOOO!:device_writer", device_rows_type(), &rows, &row, &offset, &owner, &python,
                        fallback_writer_type(), &fallback))
    return nullptr;
  auto* const type = reinterpret_cast<PyTypeObject*>(device_writer_type);
  PyObject* const made = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (!made) return nullptr;
  DeviceWriter* const writer = reinterpret_cast<DeviceWriter*>(made);
  for (PyObject* kept : {rows, owner, python, fallback}) Py_INCREF(kept);
  writer->rows = rows;
  writer->owner = owner;
  writer->python = python;
  writer->fallback = fallback;
  writer->offset = offset;
  writer->row = row;
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
