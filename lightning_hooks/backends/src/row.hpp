// The raw moments of a row: the nine float64 numbers of lightning_hooks/stats/schema.py, in the same order. backends/choice.py compares
// the names when the module is loaded. The smallest magnitude follows them: trails note it, tables do not keep it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace hooks {

struct RowMoments {
  double count = 0;
  double mean = 0;
  double m2 = 0;
  double abs_sum = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double zeros = 0;
  double nonfinite = 0;
  double underflow = 0;
  double abs_min = std::numeric_limits<double>::infinity();
};
constexpr char kNames[] = "count mean m2 abs_sum min max zeros nonfinite underflow";
constexpr std::size_t kMoments = 9;
// The size of what a table keeps of a row: the moments, without the smallest magnitude.
constexpr std::size_t kMomentBytes = kMoments * sizeof(double);
static_assert(offsetof(RowMoments, abs_min) == kMomentBytes, "the moments of a row are nine numbers without gaps");

// The lesser and the greater of two numbers. The result is NaN if either number is NaN; std::min could return the other number.
inline double least(double a, double b) { return std::isnan(a) || std::isnan(b) ? a + b : (b < a ? b : a); }
inline double greatest(double a, double b) { return std::isnan(a) || std::isnan(b) ? a + b : (b > a ? b : a); }

// The row of the union of two disjoint sets of elements (Chan, Golub and LeVeque 1983), with the same rounding and the same
// results for NaN and infinities as `merge_groups` in moments.py.
inline void merge(RowMoments& into, const RowMoments& from) {
  if (from.count == 0) return;
  if (into.count == 0) {
    into = from;
    return;
  }
  const double total = into.count + from.count;
  const double mean = into.count / total * into.mean + from.count / total * from.mean;
  const double left = into.mean - mean, right = from.mean - mean;
  into.m2 = into.m2 + from.m2 + (into.count * (left * left) + from.count * (right * right));
  into.count = total;
  into.mean = mean;
  into.abs_sum += from.abs_sum;
  into.min = least(into.min, from.min);
  into.max = greatest(into.max, from.max);
  into.zeros += from.zeros;
  into.nonfinite += from.nonfinite;
  into.underflow += from.underflow;
  into.abs_min = least(into.abs_min, from.abs_min);
}

enum class Kind : int { f32, f16, bf16, f64 };

constexpr int kBlock = 8192;  // elements: 32 KB of float32, about the size of a first-level cache

}  // namespace hooks
