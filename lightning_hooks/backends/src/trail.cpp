#include "trail.hpp"

#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace hooks {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
PyObject* trail_type = nullptr;

// Python reads the entries as records of these five fields; see stats/schema.py (TRAIL_ENTRY).
struct Entry {
  double row, minimum, maximum, nonfinite, abs_min;
};

struct Trail {
  PyObject_HEAD
  Entry* ring;
  long long capacity, count, bad;
  std::int32_t* numbers;  // by row of the table: the row in the entries, -1 for a row that is not noted; null if rows are the same
  Py_ssize_t rows;        // the length of `numbers`
};

Trail* trail_of(PyObject* self) { return reinterpret_cast<Trail*>(self); }

void add(Trail* trail, Entry entry) {
  if (trail->numbers) {
    const auto row = static_cast<Py_ssize_t>(entry.row);
    if (row < 0 || row >= trail->rows || trail->numbers[row] < 0) return;
    entry.row = trail->numbers[row];
  }
  trail->ring[trail->count % trail->capacity] = entry;
  ++trail->count;
  if (entry.nonfinite > 0) ++trail->bad;
}

// Arguments: the number of entries that are kept, and, packed as int32, the row in the entries for each row of the table.
PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  long long capacity;
  const char* numbers = nullptr;
  Py_ssize_t size = 0;
  if (!PyArg_ParseTuple(args, "L|y#:Trail", &capacity, &numbers, &size)) return nullptr;
  if (capacity < 1) return PyErr_Format(PyExc_ValueError, "a trail keeps at least one entry, not %lld", capacity);
  PyObject* const self = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (!self) return nullptr;
  trail_of(self)->ring = static_cast<Entry*>(PyMem_Calloc(static_cast<std::size_t>(capacity), sizeof(Entry)));
  trail_of(self)->capacity = capacity;
  if (numbers) {
    trail_of(self)->numbers = static_cast<std::int32_t*>(PyMem_Malloc(static_cast<std::size_t>(size) + 1));
    if (trail_of(self)->numbers) std::memcpy(trail_of(self)->numbers, numbers, static_cast<std::size_t>(size));
    trail_of(self)->rows = size / static_cast<Py_ssize_t>(sizeof(std::int32_t));
  }
  if (trail_of(self)->ring && (!numbers || trail_of(self)->numbers)) return self;
  Py_DECREF(self);
  return PyErr_NoMemory();
}

void destroy_trail(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyMem_Free(trail_of(self)->ring);
  PyMem_Free(trail_of(self)->numbers);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// Arguments: the row, the smallest and the largest element, the number of elements that are not finite, and the smallest magnitude. All
// but the row are optional.
PyObject* py_note(PyObject* self, PyObject* args) {
  Entry entry = {0, kUnknown, kUnknown, kUnknown, kUnknown};
  if (!PyArg_ParseTuple(args, "d|dddd:note", &entry.row, &entry.minimum, &entry.maximum, &entry.nonfinite, &entry.abs_min)) return nullptr;
  add(trail_of(self), entry);
  Py_RETURN_NONE;
}

// Returns the entries from a number on that are still kept, as bytes, the earliest first.
PyObject* py_entries(PyObject* self, PyObject* args) {
  const Trail* const trail = trail_of(self);
  long long first;
  if (!PyArg_ParseTuple(args, "L:entries", &first)) return nullptr;
  const long long oldest = trail->count > trail->capacity ? trail->count - trail->capacity : 0;
  if (first < oldest) first = oldest;
  std::vector<Entry> entries;
  for (long long i = first; i < trail->count; ++i) entries.push_back(trail->ring[i % trail->capacity]);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(entries.data()),
                                   static_cast<Py_ssize_t>(entries.size() * sizeof(Entry)));
}

}  // namespace

void note(PyObject* trail, int row, const RowMoments& measured) {
  add(trail_of(trail), {static_cast<double>(row), measured.min, measured.max, measured.nonfinite, measured.abs_min});
}

void note_order(PyObject* trail, int row) {
  add(trail_of(trail), {static_cast<double>(row), kUnknown, kUnknown, kUnknown, kUnknown});
}

bool is_trail(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == trail_type; }

bool make_trail_type() {
  static PyMethodDef trail_methods[] = {
      {"note", py_note, METH_VARARGS, "Add the row, smallest, largest and non-finite elements, and the smallest magnitude of one measurement."},
      {"entries", py_entries, METH_VARARGS, "The entries that are kept from a number on, as bytes."},
      {nullptr, nullptr, 0, nullptr}};
  static PyMemberDef members[] = {{"count", T_LONGLONG, offsetof(Trail, count), READONLY, nullptr},
                                  {"bad", T_LONGLONG, offsetof(Trail, bad), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, slot_of(make)},
                                {Py_tp_dealloc, slot_of(destroy_trail)},
                                {Py_tp_methods, trail_methods},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {"lightning_hooks.backends._native.Trail", sizeof(Trail), 0, Py_TPFLAGS_DEFAULT, slots};
  trail_type = PyType_FromSpec(&spec);
  return trail_type != nullptr;
}

bool add_trail_type(PyObject* module) { return PyModule_AddObjectRef(module, "Trail", trail_type) == 0; }

}  // namespace hooks
