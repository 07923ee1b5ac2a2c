#include "writer.hpp"

#include <structmember.h>

#include <chrono>
#include <cstddef>

#include "writing.hpp"

namespace hooks {
namespace {

PyObject *writer_type = nullptr, *way_type = nullptr;
PyObject *direct_name, *state_name;

// What detours may be made of: whether tensors may be written is asked for every tensor, and an attribute takes longer to look up
// than this takes to read. Counts the tensors that were written without the detour, and the time that this took.
struct Way {
  PyObject_HEAD
  char direct;
  long long nanoseconds, calls;
};

struct Writer {
  PyObject_HEAD
  PyObject *table, *detour;
  Py_ssize_t histogram;  // there are thousands of these, so they are kept small
  int row;
  bool sized, has_way;
};

int traverse(PyObject* self, visitproc visit, void* arg) {
  const Writer* const writer = reinterpret_cast<Writer*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(writer->table);
  Py_VISIT(writer->detour);
  return 0;
}
int clear(PyObject* self) {
  Writer* const writer = reinterpret_cast<Writer*>(self);
  Py_CLEAR(writer->table);
  Py_CLEAR(writer->detour);
  return 0;
}
void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// 1 where tensors may be written, 0 where not; -1 with a Python error set.
int is_direct(const Writer* writer) {
  if (writer->has_way) return reinterpret_cast<const Way*>(writer->detour)->direct;
  PyObject* const direct = PyObject_GetAttr(writer->detour, direct_name);
  if (!direct) return -1;
  Py_DECREF(direct);  // True itself stays
  return direct == Py_True;
}

// As `is_direct`, when the tensor is written.
int write_directly(const Writer* writer, PyObject* tensor) {
  const int direct = is_direct(writer);
  if (direct <= 0) return direct;
  const auto begun = std::chrono::steady_clock::now();
  PyObject* const into = PyObject_GetAttr(writer->table, state_name);
  if (!into) return -1;
  const int done = measure_into(into, writer->row * static_cast<Py_ssize_t>(kMoments), writer->histogram, tensor, true, writer->sized);
  Py_DECREF(into);
  if (writer->has_way && done > 0) {
    Way* const way = reinterpret_cast<Way*>(writer->detour);
    way->nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begun).count();
    ++way->calls;
  }
  return done;
}

}  // namespace

bool is_writer(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == writer_type; }

int write(PyObject* self, PyObject* tensor) {
  const Writer* const writer = reinterpret_cast<Writer*>(self);
  const int done = write_directly(writer, tensor);
  if (done > 0) return 0;
  if (done < 0) PyErr_Clear();  // the detour meets it again, and knows what to do about it
  PyObject* const row = PyLong_FromLong(writer->row);
  PyObject* const result = row ? PyObject_CallFunctionObjArgs(writer->detour, row, tensor, nullptr) : nullptr;
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

template <class Function>
void* slot_of(Function function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

PyObject* py_writer(PyObject*, PyObject* args) {
  PyObject *table, *histogram, *detour;
  int row;
  Py_ssize_t counts;
  if (!PyArg_ParseTuple(args, "OiOO:writer", &table, &row, &histogram, &detour)) return nullptr;
  if (!read_place(histogram, counts)) return nullptr;
  PyObject* const magnitudes = PyObject_GetAttrString(table, "magnitudes");
  if (!magnitudes) return nullptr;
  Py_DECREF(magnitudes);
  auto* const type = reinterpret_cast<PyTypeObject*>(writer_type);
  PyObject* const made = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (!made) return nullptr;
  Writer* const writer = reinterpret_cast<Writer*>(made);
  Py_INCREF(table);
  Py_INCREF(detour);
  writer->table = table;
  writer->detour = detour;
  writer->row = row;
  writer->histogram = counts;
  writer->sized = magnitudes == Py_True;
  writer->has_way = PyObject_TypeCheck(detour, reinterpret_cast<PyTypeObject*>(way_type));
  return made;
}

bool make_writer_types() {
  static PyType_Slot slots[] = {{Py_tp_call, slot_of(call)},
                                {Py_tp_traverse, slot_of(traverse)},
                                {Py_tp_clear, slot_of(clear)},
                                {Py_tp_dealloc, slot_of(destroy)},
                                {0, nullptr}};
  static PyType_Spec spec = {"lightning_hooks.backends._native.Writer", sizeof(Writer), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  static PyMemberDef members[] = {{"direct", T_BOOL, offsetof(Way, direct), 0, nullptr},
                                  {"nanoseconds", T_LONGLONG, offsetof(Way, nanoseconds), 0, nullptr},
                                  {"calls", T_LONGLONG, offsetof(Way, calls), 0, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot way_slots[] = {{Py_tp_members, members}, {0, nullptr}};
  static PyType_Spec way_spec = {"lightning_hooks.backends._native.Way", sizeof(Way), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, way_slots};
  direct_name = PyUnicode_InternFromString("direct");
  state_name = PyUnicode_InternFromString("state");
  writer_type = PyType_FromSpec(&spec);
  way_type = PyType_FromSpec(&way_spec);
  return writer_type && way_type;
}

bool add_way_type(PyObject* module) { return PyModule_AddObjectRef(module, "Way", way_type) == 0; }

}  // namespace hooks
