#include "device_rows.hpp"

#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <vector>

#include "device_late.hpp"
#include "device_launch.hpp"
#include "device_units.hpp"
#include "hooks.hpp"

namespace hooks {
namespace {

PyObject* rows_type = nullptr;

struct DeviceRows {
  static constexpr int kFields = 1;
  PyObject_HEAD
  PyObject* kept;  // what must live as long as the queue, such as the memory of the partial rows and the loaded kernels
  Queue* queue;
};

// Arguments: what to keep alive; the addresses of the functions of `Driver`, 0 for the stream of the exchange table; the type and the
// index of the device; the address of the partial rows and their number; the elements of a block, the programs of a launch, and the most
// blocks of a span.
PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* kept;
  unsigned long long launch_at, context_at, capturing_at, stream_at;
  Device device;
  long long address, capacity;
  long long block, programs, most_blocks;
  if (!PyArg_ParseTuple(args, "O(KKKK)(ii)(LL)(LLL):DeviceRows", &kept, &launch_at, &context_at, &capturing_at, &stream_at,
                        &device.type, &device.index, &address, &capacity, &block, &programs, &most_blocks))
    return nullptr;
  Driver driver;
  driver.launch = reinterpret_cast<decltype(driver.launch)>(static_cast<std::uintptr_t>(launch_at));
  driver.context = reinterpret_cast<decltype(driver.context)>(static_cast<std::uintptr_t>(context_at));
  driver.is_capturing = reinterpret_cast<decltype(driver.is_capturing)>(static_cast<std::uintptr_t>(capturing_at));
  driver.stream = stream_at ? reinterpret_cast<decltype(driver.stream)>(static_cast<std::uintptr_t>(stream_at))
                            : exchange_table()->work_stream;
  if (!driver.launch || !driver.context || !driver.is_capturing || !driver.stream || block < 1 || programs < 1 || most_blocks < 1) {
    PyErr_SetString(PyExc_ValueError, "expected the addresses of functions, and sizes of at least 1");
    return nullptr;
  }
  PyObject* const self = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (!self) return nullptr;
  Py_INCREF(kept);
  reinterpret_cast<DeviceRows*>(self)->kept = kept;
  try {
    reinterpret_cast<DeviceRows*>(self)->queue = new Queue{driver, device, address, capacity, {block, programs, most_blocks}};
  } catch (const std::exception&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return self;
}

int traverse_rows(PyObject* self, visitproc visit, void* arg) {
  Queue* const queue = reinterpret_cast<DeviceRows*>(self)->queue;
  const int visited = queue ? traverse_late(*queue, visit, arg) : 0;
  return visited ? visited : traverse<DeviceRows>(self, visit, arg);
}

int clear_rows(PyObject* self) {
  Queue* const queue = reinterpret_cast<DeviceRows*>(self)->queue;
  if (queue) forget_late(*queue);
  return clear<DeviceRows>(self);
}

void destroy_rows(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Queue* const queue = reinterpret_cast<DeviceRows*>(self)->queue;
  if (queue) forget_late(*queue);
  delete queue;
  destroy<DeviceRows>(self);
}

PyObject* set_kernel(Queue& queue, Kernel* kernels, PyObject* args) {
  int code;
  unsigned long long function;
  Kernel kernel;
  if (!PyArg_ParseTuple(args, "iKII", &code, &function, &kernel.shared, &kernel.threads)) return nullptr;
  if (code < 0 || code >= kDeviceCodes) return PyErr_Format(PyExc_ValueError, "no type has the code %d", code);
  if (queue.driver.context(&kernel.context) != 0 || !kernel.context) Py_RETURN_FALSE;
  kernel.function = reinterpret_cast<void*>(static_cast<std::uintptr_t>(function));
  kernels[code] = kernel;
  Py_RETURN_TRUE;
}

// Arguments: the code of a type; the function, the bytes of shared memory and the threads of the kernel for this type, which was loaded
// in the current context. Return False if this thread has no context.
PyObject* py_set_kernel(PyObject* self, PyObject* args) { return set_kernel(queue_of(self), queue_of(self).kernels, args); }
PyObject* py_set_kernel_of_eight(PyObject* self, PyObject* args) {
  return set_kernel(queue_of(self), queue_of(self).kernels_of_eight, args);
}
PyObject* py_set_counter(PyObject* self, PyObject* args) { return set_kernel(queue_of(self), queue_of(self).counters, args); }

// Arguments: the offset of the row, and the tensor. Returns whether the measurement was launched.
PyObject* py_launch(PyObject* self, PyObject* args) {
  long long offset;
  PyObject* tensor;
  if (!PyArg_ParseTuple(args, "LO:launch", &offset, &tensor)) return nullptr;
  const int launched = launch_on_device(queue_of(self), nullptr, offset, tensor, Moment::at_once);
  return launched < 0 ? nullptr : PyBool_FromLong(launched);
}

// Arguments: the offset of the row, the address of its histogram, and the tensor. Returns whether both launches succeeded.
PyObject* py_launch_counted(PyObject* self, PyObject* args) {
  long long offset, histogram;
  PyObject* tensor;
  if (!PyArg_ParseTuple(args, "LLO:launch_counted", &offset, &histogram, &tensor)) return nullptr;
  const int launched = launch_counted(queue_of(self), offset, histogram, tensor);
  return launched < 0 ? nullptr : PyBool_FromLong(launched);
}

// Arguments: the number of partial rows, and the stream. `settle` must follow, unless this returns -1.
PyObject* py_reserve(PyObject* self, PyObject* args) {
  long long programs;
  unsigned long long stream;
  if (!PyArg_ParseTuple(args, "LK:reserve", &programs, &stream)) return nullptr;
  try {
    return PyLong_FromLongLong(reserve(queue_of(self), programs, reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream))));
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

// Arguments: the offset of the row, the number of elements, the first partial row and the end, and whether the launch succeeded.
PyObject* py_settle(PyObject* self, PyObject* args) {
  long long offset, size, first, end;
  int is_launched;
  if (!PyArg_ParseTuple(args, "LLLLp:settle", &offset, &size, &first, &end, &is_launched)) return nullptr;
  settle(queue_of(self), first, end, is_launched != 0);
  if (is_launched) queue_of(self).spans.push_back({offset, size, first, end});
  Py_RETURN_NONE;
}

// Returns the spans that wait, as packed int64 numbers [spans, 4].
PyObject* py_spans(PyObject* self, PyObject*) {
  const std::vector<Span>& spans = queue_of(self).spans;
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(spans.data()), static_cast<Py_ssize_t>(spans.size() * sizeof(Span)));
}

// Discards the first spans. Their partial rows are free if no others wait.
PyObject* py_drop(PyObject* self, PyObject* number) {
  const std::size_t many = PyLong_AsSize_t(number);
  if (PyErr_Occurred()) return nullptr;
  Queue& queue = queue_of(self);
  const auto end = queue.spans.begin() + static_cast<std::ptrdiff_t>(std::min(many, queue.spans.size()));
  queue.spans.erase(queue.spans.begin(), end);
  if (queue.spans.empty() && queue.launching == 0) queue.used = 0;
  Py_RETURN_NONE;
}

// Returns the number of spans that wait.
PyObject* py_waiting(PyObject* self, PyObject*) { return PyLong_FromSize_t(queue_of(self).spans.size()); }

// Argument: a stream. Returns whether the spans that wait were written on that stream.
PyObject* py_is_on(PyObject* self, PyObject* stream) {
  void* const given = PyLong_AsVoidPtr(stream);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(queue_of(self).stream == given);
}

// Returns the stream on which the spans that wait were written.
PyObject* py_written_on(PyObject* self, PyObject*) { return PyLong_FromVoidPtr(queue_of(self).stream); }

// Returns the stream on which torch now works on the device.
PyObject* py_stream(PyObject* self, PyObject*) {
  const Queue& queue = queue_of(self);
  void* stream = nullptr;
  if (queue.driver.stream(queue.device.type, queue.device.index, &stream) != 0) {
    PyErr_SetString(PyExc_RuntimeError, "torch does not tell its current stream");
    return nullptr;
  }
  return PyLong_FromVoidPtr(stream);
}

}  // namespace

Queue& queue_of(PyObject* rows) { return *reinterpret_cast<DeviceRows*>(rows)->queue; }

PyTypeObject* device_rows_type() { return reinterpret_cast<PyTypeObject*>(rows_type); }

bool make_device_rows_type() {
  static PyMethodDef rows_methods[] = {
      {"set_kernel", py_set_kernel, METH_VARARGS, "Set the kernel for a type of elements; False if this thread has no context."},
      {"set_kernel_of_eight", py_set_kernel_of_eight, METH_VARARGS, "As `set_kernel`, for the kernel that measures eight tensors."},
      {"set_counter", py_set_counter, METH_VARARGS, "As `set_kernel`, for the kernel that counts the elements of a tensor."},
      {"set_unit_kernels", py_set_unit_kernels, METH_VARARGS, "As `set_kernel`, for the kernels that measure and merge units."},
      {"set_parts", py_set_parts, METH_VARARGS, "Set the memory for the parts of units; False if the present memory is in use."},
      {"launch_counted", py_launch_counted, METH_VARARGS, "As `launch`, for a tensor that is also counted into a histogram."},
      {"set_late", py_set_late, METH_VARARGS, "Set whether gradients, and whether outputs, are measured late."},
      {"late", py_late, METH_NOARGS, "The number of tensors that are to be measured later."},
      {"flush", py_flush, METH_NOARGS, "Measure the tensors that were to be measured later."},
      {"trials", py_trials, METH_NOARGS, "Remove the trials, as packed int64 [trials, 4]; their rows are not tried again."},
      {"decide", py_decide, METH_VARARGS, "Set whether the tensors of a row that was tried are measured late."},
      {"forget", py_forget, METH_NOARGS, "Release the tensors that were to be measured later."},
      {"launch", py_launch, METH_VARARGS, "Launch the measurement of a tensor; False if Python must take the tensor."},
      {"reserve", py_reserve, METH_VARARGS, "Reserve partial rows on a stream, for a launch from Python; -1 if that is not possible."},
      {"settle", py_settle, METH_VARARGS, "Add the span of a reservation, or free its partial rows."},
      {"spans", py_spans, METH_NOARGS, "The spans that wait, as packed int64 [spans, 4]."},
      {"drop", py_drop, METH_O, "Discard the first spans."},
      {"waiting", py_waiting, METH_NOARGS, "The number of spans that wait."},
      {"is_on", py_is_on, METH_O, "Whether the spans that wait were written on a stream."},
      {"written_on", py_written_on, METH_NOARGS, "The stream on which the spans that wait were written."},
      {"stream", py_stream, METH_NOARGS, "The stream on which torch now works on the device."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, slot_of(make)},
                                {Py_tp_traverse, slot_of(traverse_rows)},
                                {Py_tp_clear, slot_of(clear_rows)},
                                {Py_tp_dealloc, slot_of(destroy_rows)},
                                {Py_tp_methods, rows_methods},
                                {0, nullptr}};
  static PyType_Spec spec = {"lightning_hooks.backends._native.DeviceRows", sizeof(DeviceRows), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  rows_type = PyType_FromSpec(&spec);
  return rows_type && make_late_names();
}

}  // namespace hooks
