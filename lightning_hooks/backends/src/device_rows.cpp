#include "device_rows.hpp"

#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <vector>

#include "hooks.hpp"
#include "row.hpp"

namespace hooks {
namespace {

PyObject* rows_type = nullptr;

// The kernel that measures one tensor of a type, in the context in which it was loaded.
struct Kernel {
  void *function = nullptr, *context = nullptr;
  unsigned shared = 0, threads = 0;
};

// The partial rows of one tensor: the offset of its row in the state, its number of elements, the first partial row, and the end.
struct Span {
  std::int64_t offset, size, first, end;
};

// All partial rows between two merges are written on one stream, because a merge on that stream follows them.
struct Queue {
  Driver driver;
  Device device;
  std::int64_t address, capacity;           // of the partial rows
  std::int64_t block, programs, most_blocks;  // how a tensor is divided into spans; see cuda.py
  Kernel kernels[kDeviceCodes];
  std::vector<Span> spans;
  std::int64_t used = 0;
  void* stream = nullptr;
  int launching = 0;  // the number of threads that are launching: their partial rows are reserved, but not among the spans
};

struct DeviceRows {
  static constexpr int kFields = 1;
  PyObject_HEAD
  PyObject* kept;  // what must live as long as the queue, such as the memory of the partial rows and the loaded kernels
  Queue* queue;
};

Queue& queue_of(PyObject* self) { return *reinterpret_cast<DeviceRows*>(self)->queue; }

std::int64_t divided_up(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

// Reserves partial rows for a tensor. Returns the index of the first, or -1 if there is no room or others wait on another stream.
std::int64_t reserve(Queue& queue, std::int64_t programs, void* stream) {
  const bool is_empty = queue.spans.empty() && queue.launching == 0;
  if ((!is_empty && stream != queue.stream) || programs > queue.capacity - queue.used) return -1;
  queue.spans.reserve(queue.spans.size() + static_cast<std::size_t>(queue.launching) + 1);
  queue.stream = stream;
  ++queue.launching;
  const std::int64_t begin = queue.used;
  queue.used += programs;
  return begin;
}

// Ends a reservation: adds the span, or frees the partial rows if nothing was launched.
void settle(Queue& queue, const Span& span, bool is_launched) {
  --queue.launching;
  if (is_launched) {
    queue.spans.push_back(span);
  } else if (queue.used == span.end) {
    queue.used = span.first;
  }
}

// Whether the kernel can be launched now by this thread; sets `stream`. A kernel is launched in the current context, and a thread of
// autograd may have none. A launch into a graph that is being captured would not run.
bool is_ready(const Queue& queue, const Kernel& kernel, void** stream) {
  void* context = nullptr;
  int status = 0;
  if (queue.driver.context(&context) != 0 || context != kernel.context) return false;
  if (queue.driver.stream(queue.device.type, queue.device.index, stream) != 0) return false;
  return queue.driver.is_capturing(*stream, &status) == 0 && status == 0;
}

// Calls the driver with the parameters of `measure_one`, which are int64 numbers. Triton appends pointers to scratch memory, which these
// kernels do not use: the driver reads as many parameters as the kernel has.
int call_driver(const Driver& driver, const Kernel& kernel, std::int64_t programs, void* stream, std::int64_t address,
                std::int64_t size, std::int64_t steps, std::int64_t rows) {
  std::int64_t numbers[] = {address, size, steps, rows, 0, 0, 0, 0};
  void* parameters[sizeof numbers / sizeof *numbers];
  for (std::size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) parameters[i] = &numbers[i];
  return driver.launch(kernel.function, static_cast<unsigned>(programs), 1, 1, kernel.threads, 1, 1, kernel.shared, stream,
                       parameters, nullptr);
}

bool launch(Queue& queue, std::int64_t offset, const DeviceTensor& tensor) {
  if (tensor.size == 0) return true;
  // Copy the kernel, because other threads may change the queue while the interpreter lock is released.
  const Kernel kernel = queue.kernels[tensor.code];
  void* stream = nullptr;
  if (!kernel.function || !is_ready(queue, kernel, &stream)) return false;
  const std::int64_t blocks = divided_up(tensor.size, queue.block);
  const std::int64_t steps = std::min(std::max<std::int64_t>(1, divided_up(blocks, queue.programs)), queue.most_blocks);
  const std::int64_t programs = divided_up(blocks, steps);
  const std::int64_t begin = reserve(queue, programs, stream);
  if (begin < 0) return false;
  const std::int64_t rows = queue.address + begin * static_cast<std::int64_t>(kMomentBytes);
  // The driver waits if its queue is full, and the device may then wait for a thread that needs the interpreter lock.
  PyThreadState* const released = PyEval_SaveThread();
  const int status = call_driver(queue.driver, kernel, programs, stream, tensor.address, tensor.size, steps, rows);
  PyEval_RestoreThread(released);
  settle(queue, {offset, tensor.size, begin, begin + programs}, status == 0);
  return status == 0;
}

// Arguments: what to keep alive; the addresses of the functions of `Driver`, 0 for the stream of the exchange table; the type and the
// index of the device; the address of the partial rows and their number; the elements of a block, the programs of a launch, and the most
// blocks of a span.
PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* kept;
  unsigned long long launch_at, context_at, capturing_at, stream_at;
  Device device;
  long long address, capacity, block, programs, most_blocks;
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
    reinterpret_cast<DeviceRows*>(self)->queue =
        new Queue{driver, device, address, capacity, block, programs, most_blocks, {}, {}, 0, nullptr, 0};
  } catch (const std::exception&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return self;
}

void destroy_rows(PyObject* self) {
  delete reinterpret_cast<DeviceRows*>(self)->queue;
  destroy<DeviceRows>(self);
}

// Arguments: the code of a type; the function, the bytes of shared memory and the threads of the kernel for this type, which was loaded
// in the current context. Returns False if this thread has no context.
PyObject* py_set_kernel(PyObject* self, PyObject* args) {
  int code;
  unsigned long long function;
  Kernel kernel;
  if (!PyArg_ParseTuple(args, "iKII:set_kernel", &code, &function, &kernel.shared, &kernel.threads)) return nullptr;
  if (code < 0 || code >= kDeviceCodes) return PyErr_Format(PyExc_ValueError, "no type has the code %d", code);
  Queue& queue = queue_of(self);
  if (queue.driver.context(&kernel.context) != 0 || !kernel.context) Py_RETURN_FALSE;
  kernel.function = reinterpret_cast<void*>(static_cast<std::uintptr_t>(function));
  queue.kernels[code] = kernel;
  Py_RETURN_TRUE;
}

// Arguments: the offset of the row, and the tensor. Returns whether the measurement was launched.
PyObject* py_launch(PyObject* self, PyObject* args) {
  long long offset;
  PyObject* tensor;
  if (!PyArg_ParseTuple(args, "LO:launch", &offset, &tensor)) return nullptr;
  return PyBool_FromLong(launch_on_device(self, offset, tensor));
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
  settle(queue_of(self), {offset, size, first, end}, is_launched != 0);
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

bool launch_on_device(PyObject* rows, std::int64_t offset, PyObject* tensor) {
  Queue& queue = queue_of(rows);
  DeviceTensor found;
  try {
    return find_on_device(tensor, queue.device, found) && launch(queue, offset, found);
  } catch (const std::exception&) {
    return false;  // no memory for a span: nothing was launched
  }
}

PyTypeObject* device_rows_type() { return reinterpret_cast<PyTypeObject*>(rows_type); }

bool make_device_rows_type() {
  static PyMethodDef rows_methods[] = {
      {"set_kernel", py_set_kernel, METH_VARARGS, "Set the kernel for a type of elements; False if this thread has no context."},
      {"launch", py_launch, METH_VARARGS, "Launch the measurement of a tensor; False if Python must take the tensor."},
      {"reserve", py_reserve, METH_VARARGS, "Reserve partial rows on a stream, for a launch from Python; -1 if that is not possible."},
      {"settle", py_settle, METH_VARARGS, "Add the span of a reservation, or free its partial rows."},
      {"spans", py_spans, METH_NOARGS, "The spans that wait, as packed int64 [spans, 4]."},
      {"drop", py_drop, METH_O, "Discard the first spans."},
      {"waiting", py_waiting, METH_NOARGS, "The number of spans that wait."},
      {"is_on", py_is_on, METH_O, "Whether the spans that wait were written on a stream."},
      {"stream", py_stream, METH_NOARGS, "The stream on which torch now works on the device."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, slot_of(make)},
                                {Py_tp_traverse, slot_of(traverse<DeviceRows>)},
                                {Py_tp_clear, slot_of(clear<DeviceRows>)},
                                {Py_tp_dealloc, slot_of(destroy_rows)},
                                {Py_tp_methods, rows_methods},
                                {0, nullptr}};
  static PyType_Spec spec = {"lightning_hooks.backends._native.DeviceRows", sizeof(DeviceRows), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  rows_type = PyType_FromSpec(&spec);
  return rows_type != nullptr;
}

}  // namespace hooks
