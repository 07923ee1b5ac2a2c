#include "writer.hpp"

#include <structmember.h>

#include <chrono>
#include <cstddef>

#include "hooks.hpp"
#include "trail.hpp"
#include "writing.hpp"

namespace hooks {
namespace {

PyObject *writer_type = nullptr, *fallback_type = nullptr;
PyObject *state_name, *units_name;

struct Writer {
  static constexpr int kFields = 2;
  PyObject_HEAD
  PyObject *table, *fallback;
  // The fields have small types, because there may be thousands of writers.
  Py_ssize_t histogram;
  int row;
  short axis;
  bool magnitudes, has_units;
};

// As `measure_units_into`. Returns 0 also if the table keeps no units for the row.
int write_units(const Writer* writer, PyObject* state, Py_ssize_t first, PyObject* tensor, RowMoments& row) {
  PyObject* const every = PyObject_GetAttr(writer->table, units_name);
  PyObject* const units = every ? PyList_GetItem(every, writer->row) : nullptr;
  // Hold a reference: other threads may replace the item of the list while the interpreter lock is released.
  Py_XINCREF(units);
  Py_XDECREF(every);
  if (!units) return -1;
  const int done = units == Py_None
                       ? 0
                       : measure_units_into(state, first, writer->histogram, tensor, writer->magnitudes, units, writer->axis, row);
  Py_DECREF(units);
  return done;
}

using Clock = std::chrono::steady_clock;

FallbackWriter* fallback_of(const Writer* writer) { return reinterpret_cast<FallbackWriter*>(writer->fallback); }

void count(const Writer* writer, Clock::duration taken, const RowMoments& measured) {
  FallbackWriter* const fallback = fallback_of(writer);
  fallback->nanoseconds += std::chrono::nanoseconds(taken).count();
  ++fallback->calls;
  if (fallback->trail && is_trail(fallback->trail)) note(fallback->trail, writer->row, measured);
}

// Writes a row without calling the fallback. Returns false if the row was not written; a Python error may be set then.
bool write_directly(const Writer* writer, PyObject* tensor) {
  if (!fallback_of(writer)->direct) return false;
  const auto begun = Clock::now();
  PyObject* const state = PyObject_GetAttr(writer->table, state_name);
  if (!state) return false;
  const Py_ssize_t first = writer->row * static_cast<Py_ssize_t>(kMoments);
  RowMoments row;
  const int done = writer->has_units ? write_units(writer, state, first, tensor, row)
                                     : measure_into(state, first, writer->histogram, tensor, writer->magnitudes, row);
  Py_DECREF(state);
  if (done <= 0) return false;
  count(writer, Clock::now() - begun, row);
  return true;
}

}  // namespace

int fall_back(PyObject* fallback, int row, PyObject* tensor) {
  PyObject* const number = PyLong_FromLong(row);
  PyObject* const result = number ? PyObject_CallFunctionObjArgs(fallback, number, tensor, nullptr) : nullptr;
  Py_XDECREF(number);
  Py_XDECREF(result);
  return result ? 0 : -1;
}

PyTypeObject* fallback_writer_type() { return reinterpret_cast<PyTypeObject*>(fallback_type); }

bool is_writer(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == writer_type; }

int write(PyObject* self, PyObject* tensor) {
  const Writer* const writer = reinterpret_cast<Writer*>(self);
  if (write_directly(writer, tensor)) return 0;
  // Clear the error: the fallback measures the same tensor, so the error occurs there again and is handled there.
  PyErr_Clear();
  return fall_back(writer->fallback, writer->row, tensor);
}

namespace {

PyObject* call(PyObject* self, PyObject* args, PyObject*) {
  if (PyTuple_Size(args) != 1) return PyErr_Format(PyExc_TypeError, "expected the tensor");
  if (write(self, PyTuple_GetItem(args, 0)) != 0) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace

PyObject* py_writer(PyObject*, PyObject* args) {
  PyObject *table, *histogram, *fallback, *axis = Py_None;
  int row;
  if (!PyArg_ParseTuple(args, "OiOO!|O:writer", &table, &row, &histogram, fallback_type, &fallback, &axis)) return nullptr;
  const Py_ssize_t offset = histogram == Py_None ? kNoHistogram : PyLong_AsSsize_t(histogram);
  const long dimension = axis == Py_None ? 0 : PyLong_AsLong(axis);
  if (PyErr_Occurred()) return nullptr;
  if (dimension < -32768 || dimension > 32767) return PyErr_Format(PyExc_ValueError, "no tensor has axis %ld", dimension);
  PyObject* const magnitudes = PyObject_GetAttrString(table, "magnitudes");
  if (!magnitudes) return nullptr;
  Py_DECREF(magnitudes);
  auto* const type = reinterpret_cast<PyTypeObject*>(writer_type);
  PyObject* const made = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (!made) return nullptr;
  Writer* const writer = reinterpret_cast<Writer*>(made);
  Py_INCREF(table);
  Py_INCREF(fallback);
  writer->table = table;
  writer->fallback = fallback;
  writer->row = row;
  writer->histogram = offset;
  writer->axis = static_cast<short>(dimension);
  writer->has_units = axis != Py_None;
  writer->magnitudes = magnitudes == Py_True;
  return made;
}

bool make_writer_types() {
  static PyType_Slot slots[] = {{Py_tp_call, slot_of(call)},
                                {Py_tp_traverse, slot_of(traverse<Writer>)},
                                {Py_tp_clear, slot_of(clear<Writer>)},
                                {Py_tp_dealloc, slot_of(destroy<Writer>)},
                                {0, nullptr}};
  static PyType_Spec spec = {"lightning_hooks.backends._native.Writer", sizeof(Writer), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  static PyMemberDef members[] = {{"trail", T_OBJECT, offsetof(FallbackWriter, trail), 0, nullptr},
                                  {"direct", T_BOOL, offsetof(FallbackWriter, direct), 0, nullptr},
                                  {"nanoseconds", T_LONGLONG, offsetof(FallbackWriter, nanoseconds), 0, nullptr},
                                  {"calls", T_LONGLONG, offsetof(FallbackWriter, calls), 0, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot fallback_slots[] = {{Py_tp_members, members},
                                         {Py_tp_traverse, slot_of(traverse<FallbackWriter>)},
                                         {Py_tp_clear, slot_of(clear<FallbackWriter>)},
                                         {Py_tp_dealloc, slot_of(destroy<FallbackWriter>)},
                                         {0, nullptr}};
  static PyType_Spec fallback_spec = {"lightning_hooks.backends._native.FallbackWriter", sizeof(FallbackWriter), 0, kHookFlags,
                                      fallback_slots};
  state_name = PyUnicode_InternFromString("state");
  units_name = PyUnicode_InternFromString("units");
  writer_type = PyType_FromSpec(&spec);
  fallback_type = PyType_FromSpec(&fallback_spec);
  return writer_type && fallback_type;
}

bool add_writer_types(PyObject* module) {
  return PyModule_AddObjectRef(module, "FallbackWriter", fallback_type) == 0 &&
         PyModule_AddObjectRef(module, "Writer", writer_type) == 0;
}

}  // namespace hooks
