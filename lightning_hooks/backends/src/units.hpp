// The measurement of a tensor and of its units, the slices along one axis, in one pass over memory: for each piece that fits into
// the second-level cache, first the moments are measured, then the units. The result does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "view.hpp"

namespace hooks {

constexpr std::size_t kUnitColumns = 4;  // the sum, the sum of squares, the largest magnitude and the zeros, as in units/schema.py

// The shape of a tensor as it lies in memory, slowest dimension first: [outer, units, inner].
struct UnitLayout {
  std::int64_t outer = 0, units = 0, inner = 0;
};

// Overwrites `row` with the moments of a contiguous view, `units` with its units [units, 4], and `view.counts`, unless it is null,
// with its histogram.
void measure_units(const View& view, const UnitLayout& layout, RowMoments& row, double* units, unsigned threads);

// Merges units of disjoint elements into `into`; both are [units, 4].
void merge_units(double* into, const double* from, std::int64_t units);

}  // namespace hooks
