// Helpers for the Python types of this extension. Only the stable interface of Python is used, so one binary serves every Python from
// 3.11 on.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cstddef>

namespace hooks {

// The fields of an object: the first `Type::kFields` members of its type, references to Python objects that may be null.
template <class Type>
PyObject** fields_of(PyObject* self) {
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(self) + sizeof(PyObject));
}
// Sets the fields from positional arguments, one for each field. Returns false with a Python error set.
template <class Type>
bool fill(PyObject* self, PyObject* args, PyObject* kwargs) {
  if ((kwargs && PyDict_Size(kwargs) != 0) || PyTuple_Size(args) != Type::kFields) {
    PyErr_Format(PyExc_TypeError, "expected %d arguments, none by name", Type::kFields);
    return false;
  }
  for (int i = 0; i < Type::kFields; ++i) {
    PyObject* const value = PyTuple_GetItem(args, i);
    Py_INCREF(value);
    PyObject* const before = fields_of<Type>(self)[i];
    fields_of<Type>(self)[i] = value;
    Py_XDECREF(before);
  }
  return true;
}
template <class Type>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (int i = 0; i < Type::kFields; ++i) Py_VISIT(fields_of<Type>(self)[i]);
  return 0;
}
template <class Type>
int clear(PyObject* self) {
  for (int i = 0; i < Type::kFields; ++i) Py_CLEAR(fields_of<Type>(self)[i]);
  return 0;
}
template <class Type>
void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear<Type>(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

template <class Function>
void* slot_of(Function function) {
  return reinterpret_cast<void*>(function);
}
constexpr unsigned kHookFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;

// Adds the types of hooks.cpp to the module. Returns false with a Python error set.
bool add_hooks(PyObject* module);
PyObject* py_setup_hooks(PyObject*, PyObject* args);
PyObject* py_place_hooks_in(PyObject*, PyObject* type);

}  // namespace hooks
