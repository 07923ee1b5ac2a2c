#include "derive.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

#include "buffer.hpp"
#include "row.hpp"

namespace hooks {
namespace {

// The row of a union, by the rule of `Merges` in lightning_hooks/stats/merging.py.
Row unite(const Row* rows, const std::int64_t* members, std::size_t many) {
  Row out;
  out.min = rows[members[0]].min;
  out.max = rows[members[0]].max;
  for (std::size_t i = 0; i < many; ++i) out.count += rows[members[i]].count;
  const double total = out.count > 1 ? out.count : 1;
  for (std::size_t i = 0; i < many; ++i) out.mean += rows[members[i]].count / total * rows[members[i]].mean;
  double spread = 0;
  for (std::size_t i = 0; i < many; ++i) {
    const Row& row = rows[members[i]];
    if (row.count != 0) spread += row.count * ((row.mean - out.mean) * (row.mean - out.mean));
    out.m2 += row.m2;
    out.abs_sum += row.abs_sum;
    out.min = least(out.min, row.min);
    out.max = greatest(out.max, row.max);
    out.zeros += row.zeros;
    out.nonfinite += row.nonfinite;
    out.underflow += row.underflow;
  }
  out.m2 += spread;
  return out;
}

double abs_max(const Row& row) { return greatest(std::fabs(row.min), std::fabs(row.max)); }

double norm(const Row& row) {
  // With an infinity and no NaN the deviations are inf - inf, but the sum of squares itself is infinite.
  return std::isinf(abs_max(row)) ? std::numeric_limits<double>::infinity() : std::sqrt(row.m2 + row.count * (row.mean * row.mean));
}

// Of a row with elements, whose norm is given. The letters are those of `_LETTERS` in lightning_hooks/stats/scalars.py.
double statistic(char letter, const Row& row, double length) {
  switch (letter) {
    case 'm': return row.mean;
    case 's': return std::sqrt(row.m2 / row.count);
    case 'r': return length / std::sqrt(row.count);
    case 'n': return length;
    case 'b': return row.abs_sum / row.count;
    case 'l': return row.min;
    case 'g': return row.max;
    case 'a': return abs_max(row);
    case 'z': return row.zeros / row.count;
    case 'u': return row.underflow / row.count;
    default: return row.nonfinite;
  }
}

}  // namespace

PyObject* py_derive(PyObject*, PyObject* const* args, Py_ssize_t given) {
  char* letters = nullptr;
  Py_ssize_t many = 0;
  if (given != 7) {
    PyErr_SetString(PyExc_TypeError,
                    "expected moments, members, their beginnings, letters, the place of the result, what to take of it, and where to");
    return nullptr;
  }
  if (PyBytes_AsStringAndSize(args[3], &letters, &many) != 0) return nullptr;
  const Buffer moments(args[0], PyBUF_SIMPLE);
  if (!moments.held()) return nullptr;
  const Buffer members(args[1], PyBUF_SIMPLE);
  if (!members.held()) return nullptr;
  const Buffer starts(args[2], PyBUF_SIMPLE);
  if (!starts.held()) return nullptr;
  const Buffer result(args[4], PyBUF_WRITABLE);
  if (!result.held()) return nullptr;
  const Buffer wanted(args[5], PyBUF_SIMPLE);
  if (!wanted.held()) return nullptr;
  const Buffer taken(args[6], PyBUF_WRITABLE);
  if (!taken.held()) return nullptr;
  const std::size_t rows = moments.size(8) / kMoments, unions = starts.size(8), width = rows + unions;
  const auto* const member = members.data<std::int64_t>();
  const auto* const start = starts.data<std::int64_t>();
  const auto* const place = wanted.data<std::int32_t>();
  bool fits = result.size(8) == (static_cast<std::size_t>(many) + 1) * width && wanted.size(4) == taken.size(8);
  for (std::size_t i = 0; i < members.size(8); ++i) fits = fits && member[i] >= 0 && member[i] < static_cast<std::int64_t>(rows);
  for (std::size_t i = 0; i < wanted.size(4); ++i) fits = fits && place[i] >= 0 && static_cast<std::size_t>(place[i]) < result.size(8);
  for (std::size_t i = 0; i < unions; ++i) {
    const std::int64_t end = i + 1 < unions ? start[i + 1] : static_cast<std::int64_t>(members.size(8));
    fits = fits && start[i] >= 0 && start[i] < end && end <= static_cast<std::int64_t>(members.size(8));
  }
  if (!fits) {
    PyErr_SetString(PyExc_ValueError, "sizes or places that do not belong together");
    return nullptr;
  }
  const Row* const row = moments.data<Row>();
  double* const out = result.data<double>();
  bool all = true;
  for (std::size_t i = 0; i < width; ++i) {
    Row united;
    if (i >= rows) {
      const std::size_t number = i - rows;
      const std::int64_t end = number + 1 < unions ? start[number + 1] : static_cast<std::int64_t>(members.size(8));
      united = unite(row, member + start[number], static_cast<std::size_t>(end - start[number]));
    }
    const Row& seen = i < rows ? row[i] : united;
    const bool there = seen.count > 0;
    const double length = there ? norm(seen) : 0;
    double* into = out + i;
    for (Py_ssize_t s = 0; s < many; ++s, into += width) {
      *into = there ? statistic(letters[s], seen, length) : std::numeric_limits<double>::quiet_NaN();
    }
    *into = seen.count;
    all = all && there;
  }
  for (std::size_t i = 0; i < wanted.size(4); ++i) taken.data<double>()[i] = out[place[i]];
  return PyBool_FromLong(all);
}

}  // namespace hooks
