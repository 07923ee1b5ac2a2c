#include "writing.hpp"

#include <cstring>
#include <utility>
#include <vector>

#include "buffer.hpp"

namespace hooks {

double* numbers_of(const View& state, Py_ssize_t begin, std::size_t many) {
  if (state.kind != Kind::f64 || !state.gaps.empty() || state.copies != 1) {
    PyErr_SetString(PyExc_TypeError, "the state must be a contiguous float64 tensor");
    return nullptr;
  }
  if (begin < 0 || begin + static_cast<std::int64_t>(many) > state.numel) {
    PyErr_SetString(PyExc_IndexError, "outside of the state");
    return nullptr;
  }
  return reinterpret_cast<double*>(const_cast<char*>(state.data)) + begin;
}

namespace {

void merge_moments(double* numbers, const void* from) {
  RowMoments into, other;
  std::memcpy(static_cast<void*>(&into), numbers, kMomentBytes);
  std::memcpy(static_cast<void*>(&other), from, kMomentBytes);
  merge(into, other);
  std::memcpy(numbers, &into, kMomentBytes);
}

void add_counts(double* numbers, const void* from) {
  const char* bytes = static_cast<const char*>(from);
  for (int i = 0; i < kBuckets; ++i) {
    double count;
    std::memcpy(&count, bytes + i * sizeof count, sizeof count);
    numbers[i] += count;
  }
}

// Looks up a row of a state, and the row's histogram: null if `histogram` is kNoHistogram. Returns false with a Python error set.
bool find(const View& state, Py_ssize_t first, Py_ssize_t histogram, double*& numbers, double*& counts) {
  numbers = numbers_of(state, first, kMoments);
  if (!numbers || histogram == kNoHistogram) return numbers != nullptr;
  counts = numbers_of(state, histogram, kBuckets);
  return counts != nullptr;
}

}  // namespace

int measure_into(PyObject* into, Py_ssize_t first, Py_ssize_t histogram, PyObject* tensor, bool sized, RowMoments& row) {
  View state, view;
  int found = view_of(tensor, view);
  if (found > 0) found = view_of(into, state, false);
  if (found <= 0) return found;
  double *numbers, *counts = nullptr;
  if (!find(state, first, histogram, numbers, counts)) return -1;
  double buckets[kBuckets];
  view.counts = counts ? buckets : nullptr;
  view.sized = sized;
  if (!measure_views(&view, 1, &row)) return -1;
  merge_moments(numbers, &row);
  if (counts) add_counts(counts, buckets);
  return 1;
}

int measure_units_into(PyObject* into, Py_ssize_t first, Py_ssize_t histogram, PyObject* tensor, bool sized, PyObject* units,
                       Py_ssize_t axis, RowMoments& row) {
  View state, view, kept;
  UnitLayout layout, layout_of_kept;
  int found = view_of(into, state, false);
  if (found > 0) found = view_of_units(tensor, axis, view, layout);
  if (found > 0) found = view_of_units(units, 0, kept, layout_of_kept);
  if (found <= 0) return found;
  constexpr std::int64_t columns = kUnitColumns;
  const std::int64_t many = columns * layout.units;
  // The four numbers of a unit must lie together: reject a transposed tensor.
  if (kept.numel != many || layout_of_kept.units != layout.units || (many > 0 && layout_of_kept.inner != columns)) return 0;
  double *numbers, *counts = nullptr;
  if (!find(state, first, histogram, numbers, counts)) return -1;
  double* const present = numbers_of(kept, 0, static_cast<std::size_t>(many));
  if (!present) return -1;
  // The thread keeps the vector, because an allocation takes longer than measuring a small tensor.
  thread_local std::vector<double> merged;
  merged.resize(static_cast<std::size_t>(many));
  double buckets[kBuckets];
  view.counts = counts ? buckets : nullptr;
  view.sized = sized;
  if (!measure_view_of_units(view, layout, row, merged.data())) return -1;
  merge_moments(numbers, &row);
  if (counts) add_counts(counts, buckets);
  merge_units(present, merged.data(), layout.units);
  return 1;
}

namespace {

// Measures tensors, or the differences of pairs of tensors if `subtracted` is not null. Both are tuples, which keep the tensors alive
// while the lock is released. `histograms` may be null; a negative offset stands for no histogram.
PyObject* measure_lists(PyObject* into, const std::int64_t* firsts, Py_ssize_t many, PyObject* kept, PyObject* subtracted,
                        const std::int64_t* histograms, bool sized) {
  View state;
  int found = view_of(into, state, false);
  if (found == 0) PyErr_SetString(PyExc_TypeError, "the state must be a tensor in host memory");
  PyObject* skipped = found > 0 ? PyList_New(0) : nullptr;
  std::vector<View> views;
  std::vector<double*> destinations;
  for (Py_ssize_t i = 0; i < many && skipped; ++i) {
    View view;
    PyObject* const tensor = PyTuple_GetItem(kept, i);
    found = subtracted ? view_of_difference(tensor, PyTuple_GetItem(subtracted, i), view) : view_of(tensor, view);
    view.sized = sized;
    double* const numbers = found > 0 ? numbers_of(state, firsts[i], kMoments) : nullptr;
    const bool counted = histograms && histograms[i] >= 0;
    if (numbers && counted) view.counts = numbers_of(state, histograms[i], kBuckets);
    PyObject* const position = found == 0 ? PyLong_FromSsize_t(i) : nullptr;
    if (numbers && (!counted || view.counts)) {
      views.push_back(std::move(view));
      destinations.push_back(numbers);
    } else if (!position || PyList_Append(skipped, position) != 0) {
      Py_DECREF(skipped);
      skipped = nullptr;
    }
    Py_XDECREF(position);
  }
  std::vector<RowMoments> rows(views.size());
  if (skipped && !measure_views(views.data(), views.size(), rows.data())) {
    Py_DECREF(skipped);
    skipped = nullptr;
  }
  for (std::size_t i = 0; i < rows.size() && skipped; ++i) std::memcpy(destinations[i], &rows[i], kMomentBytes);
  return skipped;
}

}  // namespace

// Arguments: the state, a float64 tensor with all numbers of a table; an int64 buffer with the index in the state at which the row of
// each tensor begins; a list of as many tensors; a list of tensors to subtract, or None; an int64 buffer with the index at which each
// histogram begins (negative for none), or None; whether the sum of |x| is requested. Returns the indices of the tensors that were
// skipped, because the kernel does not measure them.
PyObject* py_measure_many_into(PyObject*, PyObject* const* args, Py_ssize_t given) {
  if (given < 3 || given > 6) {
    PyErr_SetString(PyExc_TypeError, "expected the state, offsets, tensors, and up to three more");
    return nullptr;
  }
  const Buffer firsts(args[1], PyBUF_SIMPLE);
  if (!firsts.held()) return nullptr;
  const bool differences = given > 3 && args[3] != Py_None, histograms = given > 4 && args[4] != Py_None;
  const Buffer counts(histograms ? args[4] : args[1], PyBUF_SIMPLE);
  if (!counts.held()) return nullptr;
  PyObject* const kept = PySequence_Tuple(args[2]);
  PyObject* const subtracted = kept && differences ? PySequence_Tuple(args[3]) : nullptr;
  const Py_ssize_t many = kept ? PyTuple_Size(kept) : -1;
  const auto fits_to = [many](const Buffer& offsets) { return offsets.size(8) == static_cast<std::size_t>(many); };
  PyObject* out = nullptr;
  if (kept && fits_to(firsts) && fits_to(counts) && (!differences || (subtracted && PyTuple_Size(subtracted) == many))) {
    const auto* const offsets = histograms ? counts.data<std::int64_t>() : nullptr;
    out = measure_lists(args[0], firsts.data<std::int64_t>(), many, kept, subtracted, offsets, given < 6 || args[5] == Py_True);
  } else if (!PyErr_Occurred()) {
    PyErr_SetString(PyExc_TypeError, "expected the state and lists of one length");
  }
  Py_XDECREF(kept);
  Py_XDECREF(subtracted);
  return out;
}

}  // namespace hooks
