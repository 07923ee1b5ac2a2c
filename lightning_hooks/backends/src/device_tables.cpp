#include "device_tables.hpp"

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "buffer.hpp"

namespace hooks {
namespace {

using Numbers = std::vector<std::int64_t>;

PyObject* packed(const Numbers& numbers) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(numbers.data()),
                                   static_cast<Py_ssize_t>(numbers.size() * sizeof(std::int64_t)));
}

// Appends the rows of the table: their offsets, their elements and their first segments; then the segments in the order of the rows.
// Segments of one row keep the order of the spans. Returns the number of rows.
std::int64_t fill_merge_table(const std::int64_t* spans, std::size_t many, Numbers& table) {
  std::vector<std::size_t> order(many);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [=](std::size_t a, std::size_t b) { return spans[4 * a] < spans[4 * b]; });
  Numbers offsets, elements, firsts, ends;
  for (std::size_t i = 0; i < many; ++i) {
    const std::int64_t* const span = spans + 4 * order[i];
    if (offsets.empty() || offsets.back() != span[0]) {
      offsets.push_back(span[0]);
      elements.push_back(0);
      firsts.push_back(static_cast<std::int64_t>(i));
    }
    elements.back() += span[1];
  }
  firsts.push_back(static_cast<std::int64_t>(many));
  for (const Numbers* part : {&offsets, &elements, &firsts}) table.insert(table.end(), part->begin(), part->end());
  for (int column = 2; column < 4; ++column) {
    for (const std::size_t each : order) table.push_back(spans[4 * each + static_cast<std::size_t>(column)]);
  }
  return static_cast<std::int64_t>(offsets.size());
}

// The tensors of one type, which one launch measures.
struct List {
  int code;
  Numbers addresses, sizes, others, offsets;
  std::int64_t steps = 1, programs = 0;  // the blocks of a span, and the number of all spans
};

// How elements are divided into spans; see cuda.py.
struct Division {
  long long block, programs, most_blocks;
};

// Whether two tensors have the same shape and the same strides.
bool are_alike(const DlTensor& a, const DlTensor& b) {
  if (a.ndim != b.ndim || !a.strides != !b.strides) return false;
  for (int d = 0; d < a.ndim; ++d) {
    if (a.shape[d] != b.shape[d] || (a.strides && a.shape[d] != 1 && a.strides[d] != b.strides[d])) return false;
  }
  return true;
}

// As `find_on_device`, for a pair of tensors with the same layout.
bool find_pair(PyObject* tensor, PyObject* subtracted, const Device& device, DeviceTensor& found, DeviceTensor& other) {
  DlTensor left, right;
  return find_on_device(tensor, device, found) && find_on_device(subtracted, device, other) && found.code == other.code &&
         describe(tensor, left) && describe(subtracted, right) && are_alike(left, right);
}

std::int64_t blocks_of(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

// Divides a list into spans, and returns the table of `measure_list`. Appends a span of each tensor to `spans`.
Numbers fill_list_table(List& list, const Division& division, std::int64_t first_row, Numbers& spans) {
  std::int64_t blocks = 0;
  for (const std::int64_t size : list.sizes) blocks += blocks_of(size, division.block);
  list.steps = blocks_of_span(blocks, division.programs, division.most_blocks);
  Numbers firsts, tensor_of_program;
  for (std::size_t i = 0; i < list.sizes.size(); ++i) {
    const std::int64_t programs = blocks_of(blocks_of(list.sizes[i], division.block), list.steps);
    firsts.push_back(list.programs);
    tensor_of_program.insert(tensor_of_program.end(), static_cast<std::size_t>(programs), static_cast<std::int64_t>(i));
    const std::int64_t begin = first_row + list.programs;
    spans.insert(spans.end(), {list.offsets[i], list.sizes[i], begin, begin + programs});
    list.programs += programs;
  }
  Numbers table;
  for (const Numbers* part : {&list.addresses, &list.sizes, &firsts, &list.others, &tensor_of_program}) {
    table.insert(table.end(), part->begin(), part->end());
  }
  return table;
}

// Sorts tensors into lists, and appends the positions of the others to `left`. Returns false with a Python error set.
bool sort_into_lists(PyObject* tensors, PyObject* subtracted, const std::int64_t* offsets, const Device& device,
                     std::vector<List>& lists, PyObject* left) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); ++i) {
    PyObject* const tensor = PyTuple_GetItem(tensors, i);
    DeviceTensor found, other;
    const bool is_found = subtracted ? find_pair(tensor, PyTuple_GetItem(subtracted, i), device, found, other)
                                     : find_on_device(tensor, device, found);
    if (!is_found) {
      PyObject* const position = PyLong_FromSsize_t(i);
      const bool is_added = position && PyList_Append(left, position) == 0;
      Py_XDECREF(position);
      if (!is_added) return false;
      continue;
    }
    auto list = std::find_if(lists.begin(), lists.end(), [&](const List& each) { return each.code == found.code; });
    if (list == lists.end()) {
      lists.push_back({found.code, {}, {}, {}, {}});
      list = lists.end() - 1;
    }
    list->addresses.push_back(found.address);
    list->sizes.push_back(found.size);
    list->others.push_back(subtracted ? other.address : found.address);
    list->offsets.push_back(offsets[i]);
  }
  return true;
}

// Returns what `py_list_tables` does, with the positions in `left`, or null with a Python error set.
PyObject* tables_of(std::vector<List>& lists, const Division& division, PyObject* left) {
  PyObject* const described = PyList_New(0);
  Numbers spans;
  std::int64_t rows = 0;
  for (List& list : lists) {
    const Numbers table = fill_list_table(list, division, rows, spans);
    PyObject* const bytes = packed(table);
    PyObject* const item = bytes && described ? Py_BuildValue("(iNLLL)", list.code, bytes, static_cast<long long>(list.sizes.size()),
                                                              static_cast<long long>(list.steps), static_cast<long long>(list.programs))
                                              : nullptr;
    const bool is_added = item && PyList_Append(described, item) == 0;
    Py_XDECREF(item);
    if (!is_added) {
      Py_XDECREF(described);
      return nullptr;
    }
    rows += list.programs;
  }
  Numbers merges;
  const std::int64_t targets = fill_merge_table(spans.data(), spans.size() / 4, merges);
  PyObject* const bytes = packed(merges);
  if (!bytes || !described) {
    Py_XDECREF(bytes);
    Py_XDECREF(described);
    return nullptr;
  }
  Py_INCREF(left);
  return Py_BuildValue("(NNNLL)", left, described, bytes, static_cast<long long>(targets), static_cast<long long>(spans.size() / 4));
}

}  // namespace

PyObject* py_list_tables(PyObject*, PyObject* args) {
  PyObject *tensors, *subtracted, *offsets;
  Device device;
  Division division;
  if (!PyArg_ParseTuple(args, "OOO(ii)(LLL):list_tables", &tensors, &subtracted, &offsets, &device.type, &device.index, &division.block,
                        &division.programs, &division.most_blocks))
    return nullptr;
  if (division.block < 1 || division.programs < 1 || division.most_blocks < 1) {
    return PyErr_Format(PyExc_ValueError, "a division into spans needs sizes of at least 1");
  }
  const Buffer firsts(offsets, PyBUF_SIMPLE);
  if (!firsts.held()) return nullptr;
  // The tuples keep the tensors alive.
  PyObject* const kept = PySequence_Tuple(tensors);
  PyObject* const others = kept && subtracted != Py_None ? PySequence_Tuple(subtracted) : nullptr;
  const Py_ssize_t many = kept ? PyTuple_Size(kept) : -1;
  PyObject* const left = PyErr_Occurred() ? nullptr : PyList_New(0);
  PyObject* out = nullptr;
  if (left && (firsts.size(8) != static_cast<std::size_t>(many) || (others && PyTuple_Size(others) != many))) {
    PyErr_SetString(PyExc_TypeError, "expected lists of one length");
  } else if (left) {
    try {
      std::vector<List> lists;
      if (sort_into_lists(kept, others, firsts.data<std::int64_t>(), device, lists, left)) out = tables_of(lists, division, left);
    } catch (const std::exception&) {
      PyErr_NoMemory();
    }
  }
  Py_XDECREF(left);
  Py_XDECREF(others);
  Py_XDECREF(kept);
  return out;
}

PyObject* py_merge_table(PyObject*, PyObject* spans) {
  const Buffer buffer(spans, PyBUF_SIMPLE);
  if (!buffer.held()) return nullptr;
  try {
    Numbers table;
    const std::int64_t rows = fill_merge_table(buffer.data<std::int64_t>(), buffer.size(32), table);
    PyObject* const bytes = packed(table);
    return bytes ? Py_BuildValue("(NL)", bytes, static_cast<long long>(rows)) : nullptr;
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

}  // namespace hooks
