// The measurement of tensors, one or many, on one thread or several. The result does not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "view.hpp"

namespace hooks {

constexpr int kBuckets = 509;  // one for zeros and subnormals of float32, and 254 exponents for each sign

// A measurement of fewer elements does not use the pool: notifying a thread takes longer than the thread saves.
constexpr std::int64_t kWorthThreads = 1 << 17;

// Writes the rows of `many` views, and the histograms of the views that have `counts`.
void measure(const View* views, std::size_t many, RowMoments* rows, unsigned threads);

}  // namespace hooks
