// The Python module `_hooks`.
#include <cstring>

#include "hooks.hpp"

namespace hooks {

PyObject* add_type(PyObject* module, PyType_Spec& spec) {
  PyObject* const type = PyType_FromSpec(&spec);
  const bool added = type && PyModule_AddObjectRef(module, std::strrchr(spec.name, '.') + 1, type) == 0;
  Py_XDECREF(type);
  return added ? type : nullptr;
}

}  // namespace hooks

namespace {

PyMethodDef functions[] = {
    {"setup", hooks::py_setup, METH_VARARGS, "Tensor type, number of the running backward, floating dtypes."},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_hooks", "Hooks that only look.", -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__hooks() {
  PyObject* const module = PyModule_Create(&definition);
  if (!module) return nullptr;
  if (!hooks::add_hooks(module)) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
