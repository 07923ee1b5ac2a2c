#include "ranges.hpp"

#include <algorithm>

namespace hooks {
namespace {

constexpr int kMiddle = kBuckets / 2;         // the bucket of zeros and of magnitudes below the normal numbers
constexpr int kExponents = kKeys / 2;

}  // namespace

void flush(Scratch& scratch, double* buckets) {
  std::int64_t sums[kKeys] = {};  // signed, because signed integers are converted to float64 faster
  for (int table = 0; table < scratch.used; ++table) {
    for (int key = 0; key < kKeys; ++key) sums[key] += scratch.tables[table][key];
  }
  std::fill_n(&scratch.tables[0][0], scratch.used * kKeys, 0u);
  scratch.used = 0;
  scratch.counted = 0;
  // The last exponent is that of NaN and infinities, which have no bucket.
  for (int exponent = 0; exponent < kExponents - 1; ++exponent) {
    buckets[kMiddle + exponent] += static_cast<double>(sums[exponent]);
    buckets[kMiddle - exponent] += static_cast<double>(sums[kExponents + exponent]);
  }
}

}  // namespace hooks
