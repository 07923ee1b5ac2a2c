#include "device_late.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "device_writer.hpp"
#include "row.hpp"

namespace hooks {
namespace {

constexpr std::int64_t kMostBytes = 64 << 20;  // of all tensors that wait
constexpr std::int64_t kLarge = 32 << 20;      // bytes of a tensor that is measured at once
constexpr std::int64_t kSizes[kDeviceCodes] = {4, 2, 2, 8};
PyObject* version_name = nullptr;

std::int64_t bytes_of(const DeviceTensor& found) { return found.size * kSizes[found.code]; }

std::size_t row_of(std::int64_t offset) { return static_cast<std::size_t>(offset) / kMoments; }

Standing& standing_of(Late& late, std::int64_t offset) {
  const std::size_t row = row_of(offset);
  if (row >= late.standings.size()) late.standings.resize(row + 1, Standing::unknown);
  return late.standings[row];
}

// Sets `version` to the number of writes in place to a tensor. Returns false for a tensor that does not count them.
bool version_of(PyObject* tensor, std::int64_t& version) {
  PyObject* const number = PyObject_GetAttr(tensor, version_name);
  version = number ? PyLong_AsLongLong(number) : -1;
  Py_XDECREF(number);
  PyErr_Clear();
  return version >= 0;
}

// Whether a tensor is what it was in the hook: nothing was written to it in place, and it has the same memory.
bool is_unchanged(const Queue& queue, const LateTensor& late) {
  DeviceTensor now;
  std::int64_t version;
  return version_of(late.tensor, version) && version == late.version && find_on_device(late.tensor, queue.device, now) &&
         now.address == late.found.address && now.size == late.found.size && now.code == late.found.code;
}

void release(std::vector<LateTensor>& tensors) {
  for (const LateTensor& each : tensors) {
    Py_DECREF(each.tensor);
    Py_DECREF(each.writer);
  }
  tensors.clear();
}

// Launches the measurement of up to eight tensors of a type, on the stream of the queue. Returns the first partial row, or -1.
std::int64_t launch_eight(Queue& queue, const LateTensor* tensors, std::size_t many) {
  const Kernel& kernel = queue.kernels_of_eight[tensors->found.code];
  std::int64_t numbers[3 * kTogether + kScratch] = {}, programs = 0;
  for (std::size_t i = 0; i < kTogether; ++i) {
    if (i < many) {
      numbers[i] = tensors[i].found.address;
      numbers[kTogether + i] = tensors[i].found.size;
      programs += tensors[i].programs;
    }
    numbers[2 * kTogether + i] = programs;  // the number of the last tensor is overwritten below
  }
  void* const stream = queue.stream;
  if (!is_ready(queue, kernel.context, stream)) return -1;
  std::int64_t first = -1;
  try {
    first = reserve(queue, programs, stream);
  } catch (const std::exception&) {  // no memory for the spans
  }
  if (first < 0) return -1;
  numbers[3 * kTogether - 1] = queue.address + first * static_cast<std::int64_t>(kMomentBytes);
  const bool is_launched = call_driver(queue, kernel, programs, stream, numbers, 3 * kTogether + kScratch);
  settle(queue, first, first + programs, is_launched);
  return is_launched ? first : -1;
}

// Measures tensors of one type that were taken out of the queue. Returns false with a Python error set.
bool measure_batch(Queue& queue, std::vector<LateTensor>& batch) {
  const auto overwritten = std::stable_partition(batch.begin(), batch.end(), [&](const LateTensor& e) { return is_unchanged(queue, e); });
  const std::size_t many = static_cast<std::size_t>(overwritten - batch.begin());
  const std::int64_t first = many ? launch_eight(queue, batch.data(), many) : 0;
  if (first >= 0) {
    std::int64_t begin = first;
    for (std::size_t i = 0; i < many; begin += batch[i++].programs) {
      queue.spans.push_back({batch[i].offset, batch[i].found.size, begin, begin + batch[i].programs});
    }
  }
  for (auto each = overwritten; each != batch.end(); ++each) standing_of(queue.late, each->offset) = Standing::at_once;
  bool done = true;
  for (std::size_t i = 0; i < many && first < 0 && done; ++i) done = write_in_python(batch[i].writer, batch[i].tensor);
  for (auto each = overwritten; each != batch.end() && done; ++each) done = tell_overwritten(each->writer);
  return done;
}

bool flush_type(Queue& queue, int code) {
  Late& late = queue.late;
  // Take the tensors out first, because other threads may add tensors while the interpreter lock is released.
  std::vector<LateTensor> batch;
  batch.swap(late.waiting[code]);
  for (const LateTensor& each : batch) {
    late.bytes -= bytes_of(each.found);
    late.programs -= each.programs;
  }
  const bool done = measure_batch(queue, batch);
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  release(batch);
  PyErr_Restore(type, value, traceback);
  return done;
}

// Measures a tensor that is tried again. Argument: its index in `tried`.
void measure_tried(Queue& queue, std::size_t index = 0) {
  Late& late = queue.late;
  const auto place = late.tried.begin() + static_cast<std::ptrdiff_t>(index);
  std::vector<LateTensor> batch(1, *place);
  late.tried.erase(place);
  const LateTensor& tensor = batch.front();
  late.tried_bytes -= bytes_of(tensor.found);
  late.trials.reserve(late.trials.size() + 1);
  if (!is_unchanged(queue, tensor)) {
    late.trials.push_back({tensor.offset, tensor.programs, tensor.first, -1});
  } else {
    const std::int64_t again = launch_eight(queue, &tensor, 1);
    if (again >= 0) late.trials.push_back({tensor.offset, tensor.programs, tensor.first, again});
  }
  release(batch);
}

bool may_be_late(const Queue& queue, PyObject* tensor, Moment moment, const DeviceTensor& found) {
  return queue.late.is_on[static_cast<int>(moment)] && moment != Moment::at_once && bytes_of(found) < kLarge && !is_parameter(tensor) &&
         queue.kernels_of_eight[found.code].function;
}

// Whether the tensors that wait are gradients and another is none, or the reverse.
bool is_of_other_pass(const Late& late, Moment moment) { return (moment == Moment::gradient) != (late.moment == Moment::gradient); }

// Whether a tensor of a row waits, apart from those of one type.
bool waits(const Late& late, std::int64_t offset, int but = kDeviceCodes) {
  for (int code = 0; code < kDeviceCodes; ++code) {
    for (const LateTensor& each : late.waiting[code]) {
      if (code != but && each.offset == offset) return true;
    }
  }
  return false;
}

}  // namespace

int take_late(Queue& queue, PyObject* writer, PyObject* tensor, Moment moment, std::int64_t offset, const DeviceTensor& found,
              void* stream) {
  Late& late = queue.late;
  if (!may_be_late(queue, tensor, moment, found) || standing_of(late, offset) != Standing::late) return 0;
  if ((is_of_other_pass(late, moment) || waits(late, offset, found.code)) && !flush_late(queue)) return -1;
  const std::int64_t programs = programs_of(queue.spread, found.size);
  std::int64_t version;
  if (!takes(queue, stream) || programs > queue.capacity - queue.used - late.programs || !version_of(tensor, version)) return 0;
  std::vector<LateTensor>& waiting = late.waiting[found.code];
  waiting.reserve(kTogether);
  waiting.push_back({tensor, writer, found, version, offset, programs, -1});
  Py_INCREF(tensor);
  Py_INCREF(writer);
  queue.stream = stream;
  late.moment = moment;
  late.bytes += bytes_of(found);
  late.programs += programs;
  if (late.bytes >= kMostBytes) return flush_late(queue) ? 1 : -1;
  return waiting.size() < kTogether || flush_type(queue, found.code) ? 1 : -1;
}

void try_late(Queue& queue, PyObject* writer, PyObject* tensor, Moment moment, std::int64_t offset, const DeviceTensor& found,
              std::int64_t first, std::int64_t programs) {
  Late& late = queue.late;
  std::int64_t version;
  if (!may_be_late(queue, tensor, moment, found) || standing_of(late, offset) != Standing::unknown) return;
  if (!version_of(tensor, version)) return;
  late.tried.push_back({tensor, writer, found, version, offset, programs, first});
  Py_INCREF(tensor);
  Py_INCREF(writer);
  late.tried_bytes += bytes_of(found);
  // A tensor is tried for as long as it could wait: eight others of its type, however many of other types.
  std::size_t of_type = 0, oldest = 0;
  for (std::size_t i = late.tried.size(); i-- > 0;) {
    if (late.tried[i].found.code != found.code) continue;
    ++of_type;
    oldest = i;
  }
  if (of_type > kTogether) measure_tried(queue, oldest);
  while (late.tried_bytes > kMostBytes) measure_tried(queue);
}

bool precedes(const Queue& queue, Moment moment, std::int64_t offset) {
  return queue.late.programs != 0 && (is_of_other_pass(queue.late, moment) || waits(queue.late, offset));
}

bool flush_late(Queue& queue) {
  if (queue.late.programs == 0 || is_capturing(queue, queue.stream)) return true;
  for (int code = 0; code < kDeviceCodes; ++code) {
    if (!queue.late.waiting[code].empty() && !flush_type(queue, code)) return false;
  }
  return true;
}

void forget_late(Queue& queue) {
  Late& late = queue.late;
  std::vector<LateTensor> dropped = std::move(late.tried);
  for (std::vector<LateTensor>& waiting : late.waiting) {
    dropped.insert(dropped.end(), waiting.begin(), waiting.end());
    waiting.clear();
  }
  late.tried.clear();
  late.trials.clear();
  late.bytes = late.programs = late.tried_bytes = 0;
  release(dropped);
}

int traverse_late(Queue& queue, visitproc visit, void* arg) {
  for (const LateTensor& each : queue.late.tried) {
    Py_VISIT(each.tensor);
    Py_VISIT(each.writer);
  }
  for (const std::vector<LateTensor>& waiting : queue.late.waiting) {
    for (const LateTensor& each : waiting) {
      Py_VISIT(each.tensor);
      Py_VISIT(each.writer);
    }
  }
  return 0;
}

// Arguments: whether gradients, and whether outputs, are measured late.
PyObject* py_set_late(PyObject* self, PyObject* args) {
  int gradients, outputs;
  if (!PyArg_ParseTuple(args, "pp:set_late", &gradients, &outputs)) return nullptr;
  Late& late = queue_of(self).late;
  late.is_on[static_cast<int>(Moment::gradient)] = gradients != 0;
  late.is_on[static_cast<int>(Moment::output)] = outputs != 0;
  Py_RETURN_NONE;
}

// Returns the number of tensors that wait, or are tried.
PyObject* py_late(PyObject* self, PyObject*) {
  const Late& late = queue_of(self).late;
  std::size_t many = late.tried.size();
  for (const std::vector<LateTensor>& waiting : late.waiting) many += waiting.size();
  return PyLong_FromSize_t(many);
}

PyObject* py_flush(PyObject* self, PyObject*) {
  Queue& queue = queue_of(self);
  try {
    if (!flush_late(queue)) return nullptr;
    while (!queue.late.tried.empty()) measure_tried(queue);
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

// Returns the trials as packed int64 numbers [trials, 4], and removes them. Their rows are not tried again.
PyObject* py_trials(PyObject* self, PyObject*) {
  Late& late = queue_of(self).late;
  const std::vector<Trial> trials = std::move(late.trials);
  late.trials.clear();
  for (const Trial& trial : trials) standing_of(late, trial.offset) = Standing::tried;
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(trials.data()), static_cast<Py_ssize_t>(trials.size() * sizeof(Trial)));
}

// Arguments: the offset of a row, and whether its tensors may be measured late.
PyObject* py_decide(PyObject* self, PyObject* args) {
  long long offset;
  int is_late;
  if (!PyArg_ParseTuple(args, "Lp:decide", &offset, &is_late)) return nullptr;
  standing_of(queue_of(self).late, offset) = is_late ? Standing::late : Standing::at_once;
  Py_RETURN_NONE;
}

PyObject* py_forget(PyObject* self, PyObject*) {
  forget_late(queue_of(self));
  Py_RETURN_NONE;
}

bool make_late_names() {
  version_name = PyUnicode_InternFromString("_version");
  return version_name != nullptr;
}

}  // namespace hooks
