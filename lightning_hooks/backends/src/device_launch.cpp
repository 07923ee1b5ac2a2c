#include "device_launch.hpp"

#include <exception>

#include "device_late.hpp"
#include "device_units.hpp"
#include "row.hpp"

namespace hooks {
namespace {

// Sets the stream on which torch works. Returns whether this thread can launch the kernel for a tensor there.
bool find_stream(const Queue& queue, const DeviceTensor& found, void*& stream) {
  const Kernel& kernel = queue.kernels[found.code];
  return kernel.function && queue.driver.stream(queue.device.type, queue.device.index, &stream) == 0 &&
         is_ready(queue, kernel.context, stream);
}

// Measures a tensor at once, with the kernel for its type, and then calls `launch_rest`, which launches what else the row keeps. If that
// returns false, nobody reads the partial rows. Returns the first partial row, or -1 if Python must measure the tensor.
template <class Rest>
std::int64_t launch(Queue& queue, std::int64_t offset, const DeviceTensor& tensor, std::int64_t programs, void* stream,
                    Rest launch_rest) {
  const std::int64_t first = reserve(queue, programs, stream);
  if (first < 0) return -1;
  std::int64_t numbers[4 + kScratch] = {tensor.address, tensor.size, steps_of(queue.spread, tensor.size),
                                        queue.address + first * static_cast<std::int64_t>(kMomentBytes)};
  const bool is_launched = call_driver(queue, queue.kernels[tensor.code], programs, stream, numbers, 4 + kScratch) && launch_rest();
  settle(queue, first, first + programs, is_launched);
  if (!is_launched) return -1;
  queue.spans.push_back({offset, tensor.size, first, first + programs});
  return first;
}

// As `launch_on_device`, for a tensor with elements.
int take(Queue& queue, PyObject* writer, std::int64_t offset, PyObject* tensor, Moment moment, const DeviceTensor& found) {
  void* stream = nullptr;
  if (!find_stream(queue, found, stream)) return 0;
  const int taken = take_late(queue, writer, tensor, moment, offset, found, stream);
  if (taken != 0) return taken;
  if (precedes(queue, moment, offset) && !flush_late(queue)) return -1;
  const std::int64_t programs = programs_of(queue.spread, found.size);
  const std::int64_t first = launch(queue, offset, found, programs, stream, [] { return true; });
  if (first < 0) return 0;
  try {
    try_late(queue, writer, tensor, moment, offset, found, first, programs);
  } catch (const std::exception&) {  // no memory for the trial, which another tensor of the row may have
  }
  return 1;
}

// As `launch`, for a tensor that is never measured late, after the tensors that precede it.
template <class Rest>
int take_at_once(Queue& queue, std::int64_t offset, const DeviceTensor& found, Moment moment, void* stream, Rest launch_rest) {
  if (precedes(queue, moment, offset) && !flush_late(queue)) return -1;
  return launch(queue, offset, found, programs_of(queue.spread, found.size), stream, launch_rest) >= 0 ? 1 : 0;
}

// Returns what `work` returns, or 0 if there is no memory for a span: nothing was launched then.
template <class Work>
int with_memory(Work work) {
  try {
    return work();
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace

int launch_on_device(Queue& queue, PyObject* writer, std::int64_t offset, PyObject* tensor, Moment moment) {
  return with_memory([&] {
    DeviceTensor found;
    if (!find_on_device(tensor, queue.device, found)) return 0;
    return found.size == 0 ? 1 : take(queue, writer, offset, tensor, moment, found);
  });
}

int launch_counted(Queue& queue, std::int64_t offset, std::int64_t histogram, PyObject* tensor) {
  return with_memory([&] {
    DeviceTensor found;
    void* stream = nullptr;
    if (!find_on_device(tensor, queue.device, found)) return 0;
    if (found.size == 0) return 1;
    const Kernel& counter = queue.counters[found.code];
    if (!find_stream(queue, found, stream) || !counter.function || counter.context != queue.kernels[found.code].context) return 0;
    return take_at_once(queue, offset, found, Moment::at_once, stream, [&] {
      const std::int64_t steps = steps_of(queue.spread, found.size), programs = programs_of(queue.spread, found.size);
      std::int64_t numbers[4 + kScratch] = {found.address, found.size, steps, histogram};
      return call_driver(queue, counter, programs, stream, numbers, 4 + kScratch);
    });
  });
}

int launch_with_units(Queue& queue, std::int64_t offset, PyObject* units, Py_ssize_t axis, PyObject* tensor, Moment moment) {
  return with_memory([&] {
    DeviceUnits found;
    void* stream = nullptr;
    if (!find_units(tensor, units, axis, queue.device, found)) return 0;
    if (found.tensor.size == 0) return 1;
    void* const context = queue.kernels[found.tensor.code].context;
    if (!find_stream(queue, found.tensor, stream) || !can_launch_units(queue, found, context, stream)) return 0;
    return take_at_once(queue, offset, found.tensor, moment, stream, [&] { return launch_units(queue, found, context, stream); });
  });
}

}  // namespace hooks
