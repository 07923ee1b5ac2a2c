// What torch calls in place of a module that has one plain hook and no other: the module's forward and then the hook, without
// torch's own way through a module with hooks. It does what its twin in plain.py does, in the same order.
#include "hooks.hpp"  // first: Python.h wants to come before the standard headers

#include <structmember.h>

#include <initializer_list>

namespace hooks {
namespace {

// What `setup_calling` was told. Strong references, kept as long as the process.
PyObject* torch_globals = nullptr;  // of the file that defines modules, where the hooks of all modules are
PyObject* tracing_state = nullptr;  // called without arguments: None while nothing is traced
PyObject* calling_code = nullptr;   // of the function by which torch calls every module
PyObject* give_way = nullptr;       // called with a module and the hook
PyObject *call_impl, *forward, *frame_locals, *self_name;
PyObject *own_hooks[4], *global_hooks[4];  // names

struct StandIn {
  static constexpr int kFields = 2;
  PyObject_HEAD
  PyObject *hook, *known;  // a plain hook, a weak reference to the module
};

int initialize(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const hook = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : nullptr;
  if (hook && !is_plain_hook(hook)) {
    PyErr_Format(PyExc_TypeError, "expected a plain hook, not %R", hook);
    return -1;
  }
  return fill<StandIn>(self, args, kwargs) ? 0 : -1;
}

// The module that is called. Not simply the one that this was made for: who copies what a module is made of copies this too,
// and only the function that calls it knows whose it is. Null with a Python error set.
PyObject* called_module(const StandIn* in) {
  PyFrameObject* const frame = PyEval_GetFrame();
  PyObject* const code = frame ? reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)) : nullptr;
  Py_XDECREF(code);
  if (!code || code != calling_code) return PyObject_CallNoArgs(in->known);
  PyObject* const locals = PyObject_GetAttr(reinterpret_cast<PyObject*>(frame), frame_locals);
  PyObject* const module = locals ? PyObject_GetItem(locals, self_name) : nullptr;
  Py_XDECREF(locals);
  return module;
}

// Whether none of these dictionaries has hooks; one that is not there may be elsewhere.
bool are_empty(PyObject* holder, PyObject* const (&names)[4]) {
  for (PyObject* name : names) {
    PyObject* const hooks = PyDict_GetItemWithError(holder, name);
    if (!hooks || PyObject_Size(hooks) != 0) return false;
  }
  return true;
}

// 1 where neither the module nor all modules have hooks, and nothing is traced; else torch has more to do than to call it.
int is_bare(PyObject* module) {
  PyObject* const own = PyObject_GenericGetDict(module, nullptr);
  if (!own) return -1;
  const bool empty = are_empty(own, own_hooks) && are_empty(torch_globals, global_hooks);
  Py_DECREF(own);
  if (PyErr_Occurred()) return -1;
  if (!empty) return 0;
  PyObject* const state = PyObject_CallNoArgs(tracing_state);
  Py_XDECREF(state);
  return state ? state == Py_None : -1;
}

PyObject* call_method(PyObject* module, PyObject* name, PyObject* args, PyObject* kwargs) {
  PyObject* const method = PyObject_GetAttr(module, name);
  if (!method) return nullptr;
  PyObject* const result = PyObject_Call(method, args, kwargs);
  Py_DECREF(method);
  return result;
}

PyObject* call_module(PyObject* hook, PyObject* module, PyObject* args, PyObject* kwargs) {
  const int bare = is_open_for(hook) ? is_bare(module) : 1;
  if (bare < 0) return nullptr;
  if (!bare) {
    PyObject* const gave = PyObject_CallFunctionObjArgs(give_way, module, hook, nullptr);
    Py_XDECREF(gave);
    if (!gave) return nullptr;
  }
  if (!bare || !is_open_for(hook)) return call_method(module, call_impl, args, kwargs);
  PyObject* const output = call_method(module, forward, args, kwargs);
  if (!output) return nullptr;
  PyObject* const changed = run(hook, module, args, output);
  if (changed != Py_None) {  // null too
    Py_DECREF(output);
    return changed;
  }
  Py_DECREF(changed);
  return output;
}

PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const StandIn* const in = reinterpret_cast<StandIn*>(self);
  PyObject* const module = called_module(in);
  if (!module) return nullptr;
  PyObject* const hook = in->hook;  // it may be gone when the module returns, and this with it
  Py_INCREF(hook);
  PyObject* const result = call_module(hook, module, args, kwargs);
  Py_DECREF(hook);
  Py_DECREF(module);
  return result;
}

#define FIELD(name) {#name, T_OBJECT_EX, offsetof(StandIn, name), READONLY, nullptr}
PyMemberDef members[] = {FIELD(hook), FIELD(known), {nullptr, 0, 0, 0, nullptr}};
#undef FIELD
PyType_Slot slots[] = {{Py_tp_new, slot_of(PyType_GenericNew)},
                       {Py_tp_init, slot_of(initialize)},
                       {Py_tp_call, slot_of(call)},
                       {Py_tp_traverse, slot_of(traverse<StandIn>)},
                       {Py_tp_clear, slot_of(clear<StandIn>)},
                       {Py_tp_dealloc, slot_of(destroy<StandIn>)},
                       {Py_tp_members, members},
                       {0, nullptr}};
PyType_Spec spec = {"lightning_hooks.backends._native.StandIn", sizeof(StandIn), 0, kHookFlags, slots};

}  // namespace

// Arguments: the globals of the file that defines modules, what tells the state of tracing, the code of the function by which
// torch calls modules, and what puts a hook where torch looks for it.
PyObject* py_setup_calling(PyObject*, PyObject* args) {
  PyObject *globals, *state, *code, *way;
  if (!PyArg_ParseTuple(args, "O!OOO:setup_calling", &PyDict_Type, &globals, &state, &code, &way)) return nullptr;
  for (PyObject* kept : {globals, state, code, way}) Py_INCREF(kept);
  torch_globals = globals;
  tracing_state = state;
  calling_code = code;
  give_way = way;
  Py_RETURN_NONE;
}

bool add_calling(PyObject* module) {
  const struct {
    PyObject** name;
    const char* text;
  } names[] = {{&call_impl, "_call_impl"},
               {&forward, "forward"},
               {&frame_locals, "f_locals"},
               {&self_name, "self"},
               {&own_hooks[0], "_backward_hooks"},
               {&own_hooks[1], "_backward_pre_hooks"},
               {&own_hooks[2], "_forward_hooks"},
               {&own_hooks[3], "_forward_pre_hooks"},
               {&global_hooks[0], "_global_backward_hooks"},
               {&global_hooks[1], "_global_backward_pre_hooks"},
               {&global_hooks[2], "_global_forward_hooks"},
               {&global_hooks[3], "_global_forward_pre_hooks"}};
  for (const auto& each : names) *each.name = PyUnicode_InternFromString(each.text);
  return add_type(module, spec) != nullptr;
}

}  // namespace hooks
