#include "device_units.hpp"

#include <algorithm>

namespace hooks {
namespace {

constexpr int kFloat64 = 3;  // the code of the type

// As `Split` of cuda_units.py.
struct Split {
  bool are_columns;
  std::int64_t units, neighbours, steps, parts, programs;
};

Split split_of(const UnitDivision& by, const UnitLayout& layout) {
  Split split;
  split.are_columns = layout.inner < by.shortest;
  split.neighbours = split.are_columns ? layout.inner : 1;
  split.units = layout.units * split.neighbours;
  const std::int64_t blocks = split.are_columns ? divided_up(split.units, by.column_units) : split.units;
  const std::int64_t length =
      split.are_columns ? divided_up(layout.outer, by.column_rows) : divided_up(layout.outer * layout.inner, by.run_block);
  split.steps = std::max<std::int64_t>(1, divided_up(length * blocks, by.programs));
  split.parts = divided_up(length, split.steps);
  split.programs = split.parts * blocks;
  return split;
}

// As `find_on_device`, with the layout of the units along an axis.
bool lay_out_on_device(PyObject* object, Py_ssize_t axis, const Device& device, DeviceTensor& found, UnitLayout& layout) {
  DlTensor tensor;  // its shape and strides point into the Python tensor
  return find_on_device(object, device, found) && describe(object, tensor) && lay_out_units(tensor, found.size, axis, layout);
}

bool parse_kernel(PyObject* args, void* context, Kernel& kernel) {
  unsigned long long function;
  if (!PyArg_ParseTuple(args, "KII", &function, &kernel.shared, &kernel.threads)) return false;
  kernel.function = reinterpret_cast<void*>(static_cast<std::uintptr_t>(function));
  kernel.context = context;
  return true;
}

}  // namespace

bool find_units(PyObject* tensor, PyObject* units, Py_ssize_t axis, const Device& device, DeviceUnits& out) {
  DeviceTensor kept;
  UnitLayout layout_of_kept;
  if (!lay_out_on_device(tensor, axis, device, out.tensor, out.layout)) return false;
  if (!lay_out_on_device(units, 0, device, kept, layout_of_kept)) return false;
  constexpr std::int64_t columns = kUnitColumns;
  out.target = kept.address;
  // The four numbers of a unit must lie together: reject a transposed tensor.
  return kept.code == kFloat64 && layout_of_kept.units == out.layout.units && kept.size == columns * out.layout.units &&
         (kept.size == 0 || layout_of_kept.inner == columns);
}

bool can_launch_units(const Queue& queue, const DeviceUnits& found, void* context, void* stream) {
  const UnitLaunches& units = queue.units;
  if (!units.merge.function || units.merge.context != context || units.columns[found.tensor.code].context != context) return false;
  if (units.are_parts_taken || units.stream != stream) return false;
  const Split split = split_of(units.division, found.layout);
  return split.parts * split.units * static_cast<std::int64_t>(kUnitColumns) <= units.capacity;
}

bool launch_units(Queue& queue, const DeviceUnits& found, void* context, void* stream) {
  // Ask again, because another thread may have taken the memory since.
  if (!can_launch_units(queue, found, context, stream)) return false;
  UnitLaunches& units = queue.units;
  const UnitLayout& layout = found.layout;
  const std::int64_t address = found.tensor.address, parts = units.address;
  const Split split = split_of(units.division, layout);
  std::int64_t columns[5 + kScratch] = {address, layout.outer, split.units, split.steps, parts};
  std::int64_t runs[6 + kScratch] = {address, layout.outer, split.units, layout.inner, split.steps, parts};
  std::int64_t merge[6 + kScratch] = {parts, split.parts, layout.units, split.neighbours, found.target, 1};
  units.are_parts_taken = true;
  const bool are_measured =
      split.are_columns
          ? call_driver(queue, units.columns[found.tensor.code], split.programs, stream, columns, 5 + kScratch)
          : call_driver(queue, units.runs[found.tensor.code], split.programs, stream, runs, 6 + kScratch);
  const bool are_merged =
      are_measured && call_driver(queue, units.merge, divided_up(layout.units, units.division.column_units), stream, merge, 6 + kScratch);
  units.are_parts_taken = false;
  return are_merged;
}

// Arguments: the code of a type; the function, the bytes of shared memory and the threads of `measure_columns`, of `measure_runs` and of
// `merge_parts`, which were loaded in the current context; and the numbers of a UnitDivision. Returns False if this thread has no context.
PyObject* py_set_unit_kernels(PyObject* self, PyObject* args) {
  Queue& queue = queue_of(self);
  int code;
  PyObject *columns, *runs, *merge;
  long long programs, shortest, column_units, column_rows, run_block;
  if (!PyArg_ParseTuple(args, "iOOO(LLLLL):set_unit_kernels", &code, &columns, &runs, &merge, &programs, &shortest, &column_units,
                        &column_rows, &run_block))
    return nullptr;
  if (code < 0 || code >= kDeviceCodes) return PyErr_Format(PyExc_ValueError, "no type has the code %d", code);
  if (std::min({programs, shortest, column_units, column_rows, run_block}) < 1) {
    PyErr_SetString(PyExc_ValueError, "expected sizes of at least 1");
    return nullptr;
  }
  void* context = nullptr;
  if (queue.driver.context(&context) != 0 || !context) Py_RETURN_FALSE;
  Kernel of_columns, of_runs, merging;
  if (!parse_kernel(columns, context, of_columns) || !parse_kernel(runs, context, of_runs) || !parse_kernel(merge, context, merging))
    return nullptr;
  queue.units.columns[code] = of_columns;
  queue.units.runs[code] = of_runs;
  queue.units.merge = merging;
  queue.units.division = {programs, shortest, column_units, column_rows, run_block};
  Py_RETURN_TRUE;
}

// Arguments: the address of memory for parts, the number of float64 that it has room for, and the stream on which it was allocated.
// Returns False if the present memory is in use.
PyObject* py_set_parts(PyObject* self, PyObject* args) {
  long long address, capacity;
  unsigned long long stream;
  if (!PyArg_ParseTuple(args, "LLK:set_parts", &address, &capacity, &stream)) return nullptr;
  UnitLaunches& units = queue_of(self).units;
  if (units.are_parts_taken) Py_RETURN_FALSE;
  units.address = address;
  units.capacity = capacity;
  units.stream = reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream));
  Py_RETURN_TRUE;
}

}  // namespace hooks
