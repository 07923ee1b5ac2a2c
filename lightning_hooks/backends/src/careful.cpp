// The measurement of a block in scalar float64: for the rare blocks that the vector code rejects, and for few elements.
#include <cstring>

#include "blocks.hpp"
#include "scalar.hpp"

namespace hooks {
namespace {

template <class S>
void careful(const S* data, int n, RowMoments& out) {
  out = RowMoments();
  out.count = n;
  double sum = 0, low = out.min, high = out.max;
  bool nan = false;
  for (int i = 0; i < n; ++i) {
    const double x = to_double(data[i]), magnitude = std::fabs(x);
    nan |= std::isnan(x);
    sum += x;
    out.abs_sum += magnitude;
    low = x < low ? x : low;
    out.abs_min = magnitude < out.abs_min ? magnitude : out.abs_min;
    high = x > high ? x : high;
    out.zeros += x == 0;
    out.nonfinite += !(magnitude <= std::numeric_limits<double>::max());
    out.underflow += magnitude < smallest_normal<S>() && x != 0;
  }
  const double undefined = std::numeric_limits<double>::quiet_NaN();
  out.min = nan ? undefined : low;
  out.max = nan ? undefined : high;
  if (nan) out.abs_min = undefined;
  out.mean = sum / n;
  double squares = 0, rest = 0;
  for (int i = 0; i < n; ++i) {
    const double d = to_double(data[i]) - out.mean;
    squares += d * d;
    rest += d;
  }
  // The mean is rounded, so the deviations add up to a small `rest` instead of 0. Subtract rest²/n, which it adds to the squares.
  const double correction = rest * (rest / n);
  out.m2 = squares - (std::isfinite(correction) ? correction : 0.0);
  if (low == high && !nan) out.m2 = std::isfinite(low) ? 0.0 : undefined;
}

}  // namespace

void measure_carefully(Kind kind, const void* data, int n, RowMoments& out) {
  switch (kind) {
    case Kind::f32: return careful(static_cast<const float*>(data), n, out);
    case Kind::f16: return careful(static_cast<const Half*>(data), n, out);
    case Kind::bf16: return careful(static_cast<const BFloat*>(data), n, out);
    case Kind::f64: return careful(static_cast<const double*>(data), n, out);
  }
}

}  // namespace hooks
