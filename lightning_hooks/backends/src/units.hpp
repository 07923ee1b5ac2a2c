// The measurement of a tensor and of its units in one pass over its memory: pieces that fit into the second-level cache are
// measured, and then their units. The result does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "view.hpp"

namespace hooks {

constexpr std::size_t kUnitColumns = 4;  // the sum, the sum of squares, the largest magnitude and the zeros, as in units/schema.py

// The elements in memory, slowest dimension first: [outer, units, inner].
struct UnitLayout {
  std::int64_t outer = 0, units = 0, inner = 0;
};

// The row of a contiguous view, and its units [units, 4], which are overwritten. For a histogram, `view.counts` are too.
void measure_units(const View& view, const UnitLayout& layout, Row& row, double* units, unsigned threads);

// Merges units of disjoint elements, [units, 4] both.
void merge_units(double* into, const double* from, std::int64_t units);

}  // namespace hooks
