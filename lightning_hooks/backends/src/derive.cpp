#include "derive.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

#include "buffer.hpp"
#include "row.hpp"

namespace hooks {
namespace {

// The row of a union, by the rule of `Merges` in lightning_hooks/stats/merging.py.
Row unite(const Row* rows, const std::int32_t* members, std::size_t many) {
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

// Of a row with elements. The letters are those of `_LETTERS` in lightning_hooks/stats/scalars.py.
double statistic(char letter, const Row& row) {
  switch (letter) {
    case 'm': return row.mean;
    case 's': return std::sqrt(row.m2 / row.count);
    case 'r': return norm(row) / std::sqrt(row.count);
    case 'n': return norm(row);
    case 'b': return row.abs_sum / row.count;
    case 'l': return row.min;
    case 'g': return row.max;
    case 'a': return abs_max(row);
    case 'z': return row.zeros / row.count;
    case 'u': return row.underflow / row.count;
    default: return row.nonfinite;
  }
}

// Neighbouring places in a flat table of all statistics, and then the counts, of all rows and unions.
struct Run {
  std::int32_t first, many;
};

// What a call works on; `fit` says whether sizes and places belong together.
struct Derivation {
  const Row* rows;
  std::size_t many;
  const std::int32_t* members;  // of all unions
  std::size_t of_unions;
  const std::int64_t* starts;  // of each union, in its members
  std::size_t unions;
  Row* united;
  const char* letters;  // of the statistics; the counts follow
  std::size_t statistics;
  const Run* wanted;
  std::size_t runs;
  double* taken;
  std::size_t places;  // of all runs

  std::size_t width() const { return many + unions; }
  std::int64_t end_of(std::size_t number) const {
    return number + 1 < unions ? starts[number + 1] : static_cast<std::int64_t>(of_unions);
  }
  bool fit() const {
    bool fits = true;
    for (std::size_t i = 0; i < of_unions; ++i) fits = fits && members[i] >= 0 && static_cast<std::size_t>(members[i]) < many;
    const auto end = static_cast<std::int64_t>((statistics + 1) * width());
    std::int64_t asked = 0;
    for (std::size_t i = 0; i < runs; ++i) {
      fits = fits && wanted[i].first >= 0 && wanted[i].many > 0 && std::int64_t{wanted[i].first} + wanted[i].many <= end;
      asked += wanted[i].many;
    }
    fits = fits && asked == static_cast<std::int64_t>(places);
    for (std::size_t i = 0; i < unions; ++i) {
      fits = fits && starts[i] >= 0 && starts[i] < end_of(i) && end_of(i) <= static_cast<std::int64_t>(of_unions);
    }
    return fits;
  }
  // The statistics at some places, from the first of them on.
  void take(const Run& run, double* into) const {
    std::size_t stat = 0, first = 0;  // the first place of a statistic
    for (std::size_t place = static_cast<std::size_t>(run.first), i = 0; i < static_cast<std::size_t>(run.many); ++place, ++i) {
      if (i == 0 || place >= first + width()) {  // seldom: one statistic comes of many rows
        stat = place / width();
        first = stat * width();
      }
      const std::size_t number = place - first;
      const Row& row = number < many ? rows[number] : united[number - many];
      if (stat == statistics) {
        into[i] = row.count;
      } else {
        into[i] = row.count > 0 ? statistic(letters[stat], row) : std::numeric_limits<double>::quiet_NaN();
      }
    }
  }
  // Whether every row and union has elements.
  bool run() const {
    bool all = true;
    for (std::size_t i = 0; i < many; ++i) all = all && rows[i].count > 0;
    for (std::size_t i = 0; i < unions; ++i) {
      united[i] = unite(rows, members + starts[i], static_cast<std::size_t>(end_of(i) - starts[i]));
      all = all && united[i].count > 0;
    }
    double* into = taken;
    for (std::size_t i = 0; i < runs; ++i) {
      take(wanted[i], into);
      into += wanted[i].many;
    }
    return all;
  }
};

}  // namespace

// Arguments: moments of rows, members of the unions, the beginning of each union in them, where to put the moments of unions,
// the letters of the statistics, the runs of places that are wanted, where to put those.
PyObject* py_derive(PyObject*, PyObject* const* args, Py_ssize_t given) {
  char* letters = nullptr;
  Py_ssize_t many = 0;
  if (given != 7) {
    PyErr_SetString(PyExc_TypeError,
                    "expected moments, members, their beginnings, moments of unions, letters, what is wanted, and where to put it");
    return nullptr;
  }
  if (PyBytes_AsStringAndSize(args[4], &letters, &many) != 0) return nullptr;
  const Buffer moments(args[0], PyBUF_SIMPLE);
  if (!moments.held()) return nullptr;
  const Buffer members(args[1], PyBUF_SIMPLE);
  if (!members.held()) return nullptr;
  const Buffer starts(args[2], PyBUF_SIMPLE);
  if (!starts.held()) return nullptr;
  const Buffer unions(args[3], PyBUF_WRITABLE);
  if (!unions.held()) return nullptr;
  const Buffer wanted(args[5], PyBUF_SIMPLE);
  if (!wanted.held()) return nullptr;
  const Buffer taken(args[6], PyBUF_WRITABLE);
  if (!taken.held()) return nullptr;
  Derivation all{};
  all.rows = moments.data<Row>();
  all.many = moments.size(sizeof(Row));
  all.members = members.data<std::int32_t>();
  all.of_unions = members.size(4);
  all.starts = starts.data<std::int64_t>();
  all.unions = starts.size(8);
  all.united = unions.data<Row>();
  all.letters = letters;
  all.statistics = static_cast<std::size_t>(many);
  all.wanted = wanted.data<Run>();
  all.runs = wanted.size(sizeof(Run));
  all.taken = taken.data<double>();
  all.places = taken.size(8);
  if (unions.size(sizeof(Row)) != all.unions || !all.fit()) {
    PyErr_SetString(PyExc_ValueError, "sizes or places that do not belong together");
    return nullptr;
  }
  return PyBool_FromLong(all.run());
}

}  // namespace hooks
