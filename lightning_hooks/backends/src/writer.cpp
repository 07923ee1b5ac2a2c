#include "writer.hpp"

#include <structmember.h>

#include <chrono>
#include <cstddef>

#include "hooks.hpp"
#include "writing.hpp"

namespace hooks {
namespace {

PyObject *writer_type = nullptr, *fallback_type = nullptr;
PyObject *state_name, *units_name;
constexpr short kNoAxis = -32768;

// The base of fallbacks: `direct` is read for every tensor, and a field is faster than an attribute. Counts the tensors that were
// written directly, and the time that this took.
struct FallbackWriter {
  PyObject_HEAD
  char direct;
  long long nanoseconds, calls;
};

struct Writer {
  static constexpr int kFields = 2;
  PyObject_HEAD
  PyObject *table, *fallback;
  Py_ssize_t histogram;  // there are thousands of writers, so they are kept small
  int row;
  short axis;
  bool magnitudes;
};

// As `measure_units_into`; 0 where the table keeps no units of the row.
int write_units(const Writer* writer, PyObject* state, Py_ssize_t first, PyObject* tensor) {
  PyObject* const every = PyObject_GetAttr(writer->table, units_name);
  PyObject* const units = every ? PyList_GetItem(every, writer->row) : nullptr;
  Py_XINCREF(units);  // other threads may replace the list while the lock is released
  Py_XDECREF(every);
  if (!units) return -1;
  const int done = units == Py_None
                       ? 0
                       : measure_units_into(state, first, writer->histogram, tensor, writer->magnitudes, units, writer->axis);
  Py_DECREF(units);
  return done;
}

// 1: written. 0: not, and there is no error. -1: a Python error is set.
int write_directly(const Writer* writer, PyObject* tensor) {
  FallbackWriter* const fallback = reinterpret_cast<FallbackWriter*>(writer->fallback);
  if (!fallback->direct) return 0;
  const auto begun = std::chrono::steady_clock::now();
  PyObject* const state = PyObject_GetAttr(writer->table, state_name);
  if (!state) return -1;
  const Py_ssize_t first = writer->row * static_cast<Py_ssize_t>(kMoments);
  const int done = writer->axis == kNoAxis ? measure_into(state, first, writer->histogram, tensor, writer->magnitudes)
                                           : write_units(writer, state, first, tensor);
  Py_DECREF(state);
  if (done > 0) {
    fallback->nanoseconds += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begun).count();
    ++fallback->calls;
  }
  return done;
}

}  // namespace

bool is_writer(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == writer_type; }

int write(PyObject* self, PyObject* tensor) {
  const Writer* const writer = reinterpret_cast<Writer*>(self);
  const int done = write_directly(writer, tensor);
  if (done > 0) return 0;
  if (done < 0) PyErr_Clear();  // the fallback meets the same error and handles it
  PyObject* const row = PyLong_FromLong(writer->row);
  PyObject* const result = row ? PyObject_CallFunctionObjArgs(writer->fallback, row, tensor, nullptr) : nullptr;
  Py_XDECREF(row);
  Py_XDECREF(result);
  return result ? 0 : -1;
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
  const long dimension = axis == Py_None ? kNoAxis : PyLong_AsLong(axis);
  if (PyErr_Occurred()) return nullptr;
  if (axis != Py_None && (dimension <= kNoAxis || dimension > 32767)) return PyErr_Format(PyExc_ValueError, "no tensor has axis %ld", dimension);
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
  static PyMemberDef members[] = {{"direct", T_BOOL, offsetof(FallbackWriter, direct), 0, nullptr},
                                  {"nanoseconds", T_LONGLONG, offsetof(FallbackWriter, nanoseconds), 0, nullptr},
                                  {"calls", T_LONGLONG, offsetof(FallbackWriter, calls), 0, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot fallback_slots[] = {{Py_tp_members, members}, {0, nullptr}};
  static PyType_Spec fallback_spec = {"lightning_hooks.backends._native.FallbackWriter", sizeof(FallbackWriter), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, fallback_slots};
  state_name = PyUnicode_InternFromString("state");
  units_name = PyUnicode_InternFromString("units");
  writer_type = PyType_FromSpec(&spec);
  fallback_type = PyType_FromSpec(&fallback_spec);
  return writer_type && fallback_type;
}

bool add_fallback_type(PyObject* module) { return PyModule_AddObjectRef(module, "FallbackWriter", fallback_type) == 0; }

}  // namespace hooks
