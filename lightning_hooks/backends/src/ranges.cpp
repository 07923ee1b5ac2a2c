#include "ranges.hpp"

#include <algorithm>
#include <memory>

namespace hooks {
namespace {

constexpr int kMiddle = kBuckets / 2;         // the bucket of zeros and of magnitudes below the normal numbers
constexpr int kExponents = kKeys / 2;

}  // namespace

Row measure_range(const Blocks& kernels, const View& view, std::int64_t begin, std::int64_t end, Scratch& scratch) {
  Row out, part;
  while (begin < end) {
    const int n = static_cast<int>(std::min<std::int64_t>(kBlock, end - begin));
    const void* data = scratch.buffer;
    if (view.minus) {
      const std::int64_t offset = begin * size_of(view.stored);
      kernels.subtract(view.stored, view.data + offset, view.minus + offset, n, scratch.buffer);
    } else {
      data = view.block(begin, n, scratch.buffer);
    }
    kernels.measure(view.kind, data, n, view.sized, part);
    if (view.counts) {
      scratch.used = std::max(scratch.used, kernels.count(view.kind, data, n, scratch.tables));
      scratch.counted += n;
    }
    merge(out, part);
    begin += n;
  }
  return out;
}

Scratch& scratch_of_thread() {
  thread_local const std::unique_ptr<Scratch> scratch(new Scratch());
  return *scratch;
}

void flush(Scratch& scratch, double* buckets) {
  std::int64_t sums[kKeys] = {};  // signed: faster to convert to float64
  for (int table = 0; table < scratch.used; ++table) {
    for (int key = 0; key < kKeys; ++key) sums[key] += scratch.tables[table][key];
  }
  std::fill_n(&scratch.tables[0][0], scratch.used * kKeys, 0u);
  scratch.used = 0;
  scratch.counted = 0;
  for (int exponent = 0; exponent < kExponents - 1; ++exponent) {  // the last one is NaN and infinities, which have no bucket
    buckets[kMiddle + exponent] += static_cast<double>(sums[exponent]);
    buckets[kMiddle - exponent] += static_cast<double>(sums[kExponents + exponent]);
  }
}

}  // namespace hooks
