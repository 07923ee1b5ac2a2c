// The forward hook and the gradient hook of modules that are only read, as Python types in C++. They are called once or twice for
// every module at every step, and between two calls the model fills the caches with its tensors, so the cost is the memory that a
// call touches. They do the same as their counterparts in hooks/plain.py, in the same order.
#include "hooks.hpp"

#include <structmember.h>

#include <cstring>
#include <initializer_list>

#include "device_writer.hpp"
#include "writer.hpp"

namespace hooks {
namespace {

// The arguments of `setup_hooks` and `place_hooks_in`, and types of this file: strong references that are never released.
PyObject* tensor_type = nullptr;
PyObject* graph_task = nullptr;   // a function () -> the number of the running backward pass, -1 outside a backward pass
PyObject* floating = nullptr;     // a tuple of the floating-point dtypes
PyObject* grad_enabled = nullptr;  // a function () -> whether autograd records operations
PyObject* has_gradient = nullptr;  // `has_gradient` of hooks/gradients.py, called if a module may return one of its arguments
PyObject* minus_one = nullptr;
PyObject* dictionary_type = nullptr;  // the type of `Tensor._backward_hooks`; if null, `Tensor.register_hook` registers hooks
PyObject* switch_type = nullptr;
PyObject *dtype_name, *grad_fn, *register_hook, *hooks_name, *register_dictionary, *identify_name, *shown_name;

// The base of switches; `HookSwitch` in hooks/switch.py says what the members mean.
struct SwitchBase {
  PyObject_HEAD
  char is_on, awaits_loss, only_loss, saw_inner, is_loss;
  long long pass_number;
};
bool is_on(PyObject* hook_switch) { return hook_switch && reinterpret_cast<const SwitchBase*>(hook_switch)->is_on; }

// As `HookSwitch.is_in_loss_backward`: whether hooks are on and the running backward pass is that of the loss. Returns -1 with a
// Python error set.
int is_in_loss_backward(PyObject* hook_switch) {
  SwitchBase* const base = reinterpret_cast<SwitchBase*>(hook_switch);
  if (!hook_switch || !base->is_on) return 0;
  if (base->only_loss) return 1;
  if (base->awaits_loss) {
    base->saw_inner = 1;
    return 0;
  }
  PyObject* const task = PyObject_CallNoArgs(graph_task);
  const long long number = task ? PyLong_AsLongLong(task) : -1;
  Py_XDECREF(task);
  if (!task || (number == -1 && PyErr_Occurred())) return -1;
  if (number >= 0 && number == base->pass_number) return base->is_loss;
  PyObject* const answer = PyObject_CallMethodObjArgs(hook_switch, identify_name, nullptr);
  const int counted = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  if (counted >= 0) {
    base->pass_number = number;
    base->is_loss = static_cast<char>(counted);
  }
  return counted;
}

// As `HookSwitch.is_always_shown`, for a switch that is on. Returns -1 with a Python error set.
int is_always_shown(PyObject* hook_switch, PyObject* grad) {
  if (!is_on(hook_switch)) return 0;
  PyObject* const answer = PyObject_CallMethodObjArgs(hook_switch, shown_name, grad, nullptr);
  const int shown = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  return shown;
}

// The kinds of readers, the callables that get a tensor. All kinds but `python` are called without the interpreter.
enum class Reader : char { python, writer, device_writer, readers };
PyObject* readers_type = nullptr;

Reader kind_of(PyObject* reader) {
  if (is_writer(reader)) return Reader::writer;
  if (is_device_writer(reader)) return Reader::device_writer;
  return reinterpret_cast<PyObject*>(Py_TYPE(reader)) == readers_type ? Reader::readers : Reader::python;
}

// A reader that passes its tensor to each reader in the tuple `calls`. The results of readers are ignored.
struct Readers {
  static constexpr int kFields = 1;
  PyObject_HEAD
  PyObject* calls;
};

// Passes a tensor to a reader. Returns false with a Python error set.
bool read(PyObject* reader, Reader kind, PyObject* tensor, Moment moment) {
  switch (kind) {
    case Reader::writer:
      return write(reader, tensor) == 0;
    case Reader::device_writer:
      return write_on_device(reader, tensor, moment) == 0;
    case Reader::readers: {
      PyObject* const calls = reinterpret_cast<Readers*>(reader)->calls;
      for (Py_ssize_t i = 0; i < PyTuple_Size(calls); ++i) {
        PyObject* const each = PyTuple_GetItem(calls, i);
        if (!read(each, kind_of(each), tensor, moment)) return false;
      }
      return true;
    }
    case Reader::python:
      break;
  }
  PyObject* const result = PyObject_CallFunctionObjArgs(reader, tensor, nullptr);
  Py_XDECREF(result);
  return result != nullptr;
}

int initialize_readers(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const calls = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : nullptr;
  if (calls && !PyTuple_Check(calls)) {
    PyErr_Format(PyExc_TypeError, "expected a tuple of readers, not %R", calls);
    return -1;
  }
  return fill<Readers>(self, args, kwargs) ? 0 : -1;
}

PyObject* readers_call(PyObject* self, PyObject* args, PyObject*) {
  if (PyTuple_Size(args) != 1) return PyErr_Format(PyExc_TypeError, "expected the tensor");
  if (!read(self, Reader::readers, PyTuple_GetItem(args, 0), Moment::at_once)) return nullptr;
  Py_RETURN_NONE;
}

// A tensor hook that passes the gradient to a reader, if the running backward pass is that of the loss.
struct GradReader {
  static constexpr int kFields = 2;
  PyObject_HEAD
  PyObject *hook_switch, *read;
  Reader kind;  // how `read` is called
};
// A forward hook that passes the output of a module to a reader and hooks the gradient of the output; neither is changed.
struct Plain {
  static constexpr int kFields = 5;
  PyObject_HEAD
  PyObject *hook_switch, *called, *read, *grad, *fall_back;
  Reader kind;
};

template <class Type>
int initialize(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* const hook_switch = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : nullptr;
  // Check the real type: an object with another `__class__` has no fields of SwitchBase to read.
  if (hook_switch && !PyObject_TypeCheck(hook_switch, reinterpret_cast<PyTypeObject*>(switch_type))) {
    PyErr_Format(PyExc_TypeError, "expected a switch, not %R", hook_switch);
    return -1;
  }
  if (!fill<Type>(self, args, kwargs)) return -1;
  Type* const hook = reinterpret_cast<Type*>(self);
  hook->kind = kind_of(hook->read);
  return 0;
}

PyObject* grad_reader_call(PyObject* self, PyObject* args, PyObject*) {
  const GradReader* const hook = reinterpret_cast<GradReader*>(self);
  PyObject* const grad = PyTuple_Size(args) == 1 ? PyTuple_GetItem(args, 0) : nullptr;
  if (!grad) return PyErr_Format(PyExc_TypeError, "expected the gradient");
  // Autograd passes None if the backward of an operation returned None.
  if (grad == Py_None) Py_RETURN_NONE;
  int shown = is_in_loss_backward(hook->hook_switch);
  if (shown == 0) shown = is_always_shown(hook->hook_switch, grad);
  if (shown < 0 || (shown && !read(hook->read, hook->kind, grad, Moment::gradient))) return nullptr;
  Py_RETURN_NONE;
}

// Registers the first hook of a tensor as `Tensor.register_hook` does, but creates no handle. Returns false with a Python error set.
bool hook_first(PyObject* output, PyObject* node, PyObject* hook) {
  PyObject* const hooks = PyObject_CallNoArgs(dictionary_type);
  const bool set = hooks && PyObject_SetItem(hooks, minus_one, hook) == 0 && PyObject_SetAttr(output, hooks_name, hooks) == 0;
  Py_XDECREF(hooks);
  PyObject* const result = set ? PyObject_CallMethodObjArgs(node, register_dictionary, output, nullptr) : nullptr;
  Py_XDECREF(result);
  return result != nullptr;
}

// Registers a hook on the gradient of an output. Returns false with a Python error set.
bool hook_gradient(PyObject* output, PyObject* node, PyObject* hook) {
  if (dictionary_type) {
    PyObject* const hooks = PyObject_GetAttr(output, hooks_name);
    Py_XDECREF(hooks);
    if (!hooks) return false;
    if (hooks == Py_None) return hook_first(output, node, hook);
  }
  PyObject* const handle = PyObject_CallMethodObjArgs(output, register_hook, hook, nullptr);
  Py_XDECREF(handle);
  return handle != nullptr;
}

// Whether a backward pass is running. Returns -1 with a Python error set.
int in_backward() {
  PyObject* const task = PyObject_CallNoArgs(graph_task);
  // Outside a backward pass, the common case, Python returns its cached object for -1, so comparing pointers suffices.
  const int inside = task == minus_one ? 0 : task ? PyObject_RichCompareBool(task, minus_one, Py_NE) : -1;
  Py_XDECREF(task);
  return inside;
}

// Whether an argument is the output of the module, or a container that may hold the output; `has_gradient` searches containers.
bool may_hold(PyObject* given, PyObject* output) {
  return given == output || PyTuple_Check(given) || PyList_Check(given) || PyDict_Check(given);
}

// Whether to hook the gradient of an output. If the module returned an argument unchanged, `has_gradient` decides, because the
// gradient may be hooked already. Returns -1 with a Python error set.
int takes_gradient(const Plain* hook, PyObject* args, PyObject* output) {
  const Py_ssize_t given = PyTuple_Check(args) ? PyTuple_Size(args) : 0;
  bool asks = false;
  for (Py_ssize_t i = 0; i < given && !asks; ++i) asks = may_hold(PyTuple_GetItem(args, i), output);
  PyObject* const answer = asks ? PyObject_CallFunctionObjArgs(has_gradient, hook->grad, args, output, nullptr)
                                : PyObject_CallNoArgs(grad_enabled);
  const int takes = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  return takes;
}

// Passes an output to Python that is not a single floating-point tensor with a node of the autograd graph.
PyObject* pass_on(PyObject* self, PyObject* module, PyObject* args, PyObject* output) {
  PyObject* const fall_back = reinterpret_cast<Plain*>(self)->fall_back;
  return PyObject_CallFunctionObjArgs(fall_back, self, module, args, output, nullptr);
}

// Whether an output is a floating-point tensor of the class `Tensor` itself. Returns -1 with a Python error set.
int is_plain(PyObject* output) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(output)) != tensor_type) return 0;
  PyObject* const dtype = PyObject_GetAttr(output, dtype_name);  // faster than a call of is_floating_point()
  Py_XDECREF(dtype);
  return dtype ? PySequence_Contains(floating, dtype) : -1;
}

// Passes the output of a module to the reader, and hooks the gradient of the output, whose node in the autograd graph is `node`.
// Returns false with a Python error set.
bool read_output(const Plain* hook, PyObject* module, PyObject* args, PyObject* output, PyObject* node) {
  PyObject* const key = PyLong_FromVoidPtr(module);  // id(module)
  const bool noted = key && PySet_Add(hook->called, key) == 0;
  Py_XDECREF(key);
  if (!noted) return false;
  if (hook->read != Py_None) {
    // A forward inside a backward pass is a recomputation of activation checkpointing: do not read the output twice.
    const int inside = in_backward();
    if (inside < 0 || (!inside && !read(hook->read, hook->kind, output, Moment::output))) return false;
  }
  if (hook->grad == Py_None) return true;
  const int takes = takes_gradient(hook, args, output);
  return takes > 0 ? hook_gradient(output, node, hook->grad) : takes == 0;
}

// The forward hook itself, which torch calls after the forward of the module.
PyObject* run(PyObject* self, PyObject* module, PyObject* args, PyObject* output) {
  const Plain* const hook = reinterpret_cast<Plain*>(self);
  if (!is_on(hook->hook_switch)) Py_RETURN_NONE;
  const int plain = is_plain(output);
  if (plain < 0) return nullptr;
  PyObject* const node = plain ? PyObject_GetAttr(output, grad_fn) : nullptr;
  if (plain && !node) return nullptr;
  // Pass on a tensor without a node: it is a leaf of the autograd graph, or was computed without gradients.
  if (!plain || node == Py_None) {
    Py_XDECREF(node);
    return pass_on(self, module, args, output);
  }
  const bool done = read_output(hook, module, args, output, node);
  Py_DECREF(node);
  if (!done) return nullptr;
  Py_RETURN_NONE;
}

// Python's `Plain.run`: calls `run` with three arguments, the module, its arguments and its result.
PyObject* plain_run(PyObject* self, PyObject* const* args, Py_ssize_t given) {
  if (given != 3) return PyErr_Format(PyExc_TypeError, "expected the module, its arguments and its result");
  return run(self, args[0], args[1], args[2]);
}

#define FIELD(type, name) {#name, T_OBJECT_EX, offsetof(type, name), READONLY, nullptr}
PyMemberDef switch_members[] = {{"is_on", T_BOOL, offsetof(SwitchBase, is_on), 0, nullptr},
                              {"awaits_loss", T_BOOL, offsetof(SwitchBase, awaits_loss), 0, nullptr},
                              {"only_loss", T_BOOL, offsetof(SwitchBase, only_loss), 0, nullptr},
                              {"saw_inner", T_BOOL, offsetof(SwitchBase, saw_inner), 0, nullptr},
                              {"is_loss", T_BOOL, offsetof(SwitchBase, is_loss), 0, nullptr},
                              {"pass_number", T_LONGLONG, offsetof(SwitchBase, pass_number), 0, nullptr},
                              {nullptr, 0, 0, 0, nullptr}};
PyMemberDef readers_members[] = {FIELD(Readers, calls), {nullptr, 0, 0, 0, nullptr}};
PyMemberDef grad_reader_members[] = {FIELD(GradReader, hook_switch), FIELD(GradReader, read), {nullptr, 0, 0, 0, nullptr}};
PyMemberDef plain_members[] = {FIELD(Plain, hook_switch), FIELD(Plain, called), FIELD(Plain, read), FIELD(Plain, grad),
                               FIELD(Plain, fall_back), {nullptr, 0, 0, 0, nullptr}};
#undef FIELD
PyMethodDef plain_methods[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(plain_run)), METH_FASTCALL, "Called by torch after the module."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot switch_slots[] = {{Py_tp_members, switch_members}, {0, nullptr}};
PyType_Slot readers_slots[] = {{Py_tp_new, slot_of(PyType_GenericNew)},
                               {Py_tp_init, slot_of(initialize_readers)},
                               {Py_tp_call, slot_of(readers_call)},
                               {Py_tp_traverse, slot_of(traverse<Readers>)},
                               {Py_tp_clear, slot_of(clear<Readers>)},
                               {Py_tp_dealloc, slot_of(destroy<Readers>)},
                               {Py_tp_members, readers_members},
                               {0, nullptr}};
PyType_Slot grad_reader_slots[] = {{Py_tp_new, slot_of(PyType_GenericNew)},
                                   {Py_tp_init, slot_of(initialize<GradReader>)},
                                   {Py_tp_call, slot_of(grad_reader_call)},
                                   {Py_tp_traverse, slot_of(traverse<GradReader>)},
                                   {Py_tp_clear, slot_of(clear<GradReader>)},
                                   {Py_tp_dealloc, slot_of(destroy<GradReader>)},
                                   {Py_tp_members, grad_reader_members},
                                   {0, nullptr}};
PyType_Slot plain_slots[] = {{Py_tp_new, slot_of(PyType_GenericNew)},
                             {Py_tp_init, slot_of(initialize<Plain>)},
                             {Py_tp_traverse, slot_of(traverse<Plain>)},
                             {Py_tp_clear, slot_of(clear<Plain>)},
                             {Py_tp_dealloc, slot_of(destroy<Plain>)},
                             {Py_tp_members, plain_members},
                             {Py_tp_methods, plain_methods},
                             {0, nullptr}};
PyType_Spec switch_spec = {"lightning_hooks.backends._native.SwitchBase", sizeof(SwitchBase), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, switch_slots};
// Subclasses are not allowed, because `kind_of` compares types exactly.
PyType_Spec readers_spec = {"lightning_hooks.backends._native.Readers", sizeof(Readers), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, readers_slots};
PyType_Spec grad_reader_spec = {"lightning_hooks.backends._native.GradReader", sizeof(GradReader), 0, kHookFlags, grad_reader_slots};
PyType_Spec plain_spec = {"lightning_hooks.backends._native.Plain", sizeof(Plain), 0, kHookFlags, plain_slots};

// Returns a borrowed reference to the new type, which the module keeps alive, or null with a Python error set.
PyObject* add_type(PyObject* module, PyType_Spec& spec) {
  PyObject* const type = PyType_FromSpec(&spec);
  const bool added = type && PyModule_AddObjectRef(module, std::strrchr(spec.name, '.') + 1, type) == 0;
  Py_XDECREF(type);
  return added ? type : nullptr;
}

}  // namespace

// Arguments: the type of tensors, a function for the number of the running backward, the floating dtypes, a function for whether
// autograd records, and `has_gradient` of hooks/gradients.py.
PyObject* py_setup_hooks(PyObject*, PyObject* args) {
  PyObject *tensor, *task, *dtypes, *enabled, *has;
  if (!PyArg_ParseTuple(args, "OOOOO:setup_hooks", &tensor, &task, &dtypes, &enabled, &has)) return nullptr;
  for (PyObject* kept : {tensor, task, dtypes, enabled, has}) Py_INCREF(kept);
  tensor_type = tensor;
  graph_task = task;
  floating = dtypes;
  grad_enabled = enabled;
  has_gradient = has;
  Py_RETURN_NONE;
}

// Argument: the type of the dictionary `Tensor._backward_hooks`, into which hooks are placed from now on. If it is None, hooks are
// registered by `Tensor.register_hook`.
PyObject* py_place_hooks_in(PyObject*, PyObject* type) {
  Py_INCREF(type);  // is never released, as `dictionary_type` stays valid until the process ends
  dictionary_type = type == Py_None ? nullptr : type;
  Py_RETURN_NONE;
}

bool add_hooks(PyObject* module) {
  const struct {
    PyObject** name;
    const char* text;
  } names[] = {{&dtype_name, "dtype"},
               {&grad_fn, "grad_fn"},
               {&register_hook, "register_hook"},
               {&hooks_name, "_backward_hooks"},
               {&register_dictionary, "_register_hook_dict"},
               {&identify_name, "identify"},
               {&shown_name, "is_always_shown"}};
  for (const auto& each : names) *each.name = PyUnicode_InternFromString(each.text);
  minus_one = PyLong_FromLong(-1);
  switch_type = add_type(module, switch_spec);
  readers_type = add_type(module, readers_spec);
  if (!switch_type || !readers_type || !add_type(module, plain_spec) || !add_type(module, grad_reader_spec)) return false;
  // These references are never released: the types stay valid until the process ends.
  Py_INCREF(switch_type);
  Py_INCREF(readers_type);
  return true;
}

}  // namespace hooks
